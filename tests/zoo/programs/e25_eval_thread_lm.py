"""Character-level LM; validation runs in a side thread on a light copy of the weights and drives the lr schedule."""
import copy
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"

CHARS, D, BLOCK, BATCH, STEPS, EVAL_EVERY = 64, 48, 16, 32, 300, 20

table = torch.randint(0, CHARS, (CHARS, CHARS))


def corpus(n):
    rnd = torch.randint(0, CHARS, (n,)).tolist()
    noise = (torch.rand(n) < 0.3).tolist()
    rows, out = table.tolist(), [0, 1]
    for k in range(2, n):
        out.append(rnd[k] if noise[k] else rows[out[-2] % 4][out[-1]])
    return torch.tensor(out)


train_data, val_data = corpus(20000).to(device), corpus(45001).to(device)


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(CHARS, D)
        self.fc = nn.Linear(3 * D, 128)
        self.head = nn.Linear(128, CHARS)

    def forward(self, ids):
        e = self.emb(ids)
        ctx = [F.pad(e, (0, 0, k, 0))[:, :ids.size(1)] for k in range(3)]
        return self.head(F.gelu(self.fc(torch.cat(ctx, -1))))


class Validator(threading.Thread):
    def __init__(self, data, block, batch):
        super().__init__(daemon=True)
        self.jobs, self.results = queue.Queue(), queue.Queue()
        n = (len(data) - 1) // block
        self.x = data[:n * block].view(n, block).split(batch)
        self.y = data[1:n * block + 1].view(n, block).split(batch)

    @torch.no_grad()
    def evaluate(self, model):
        nll, count = torch.zeros((), device=device, dtype=next(model.parameters()).dtype), 0
        for x, y in zip(self.x, self.y):
            logits = model(x)
            nll += F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
            count += y.numel()
        return nll.item() / count

    def run(self):
        while (job := self.jobs.get()) is not None:
            step, model = job
            self.results.put((step, self.evaluate(model)))


model = CharLM().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.3, patience=1)
validator = Validator(val_data, BLOCK, BATCH)
validator.start()
best, best_step, best_weights = float("inf"), None, None

for step in range(STEPS):
    pos = torch.randint(0, len(train_data) - BLOCK - 1, (BATCH,), device=device)
    idx = pos[:, None] + torch.arange(BLOCK, device=device)
    loss = F.cross_entropy(model(train_data[idx]).flatten(0, 1), train_data[idx + 1].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % EVAL_EVERY == 0:
        validator.jobs.put((step, copy.deepcopy(model).half().eval()))
        at, val = validator.results.get()
        plateau.step(val)
        if val < best:
            best, best_step = val, at
            best_weights = {k: v.clone() for k, v in model.state_dict().items()}
        if (step + 1) % 60 == 0:
            print(f"step {step + 1} train {loss.item():.3f} val {val:.3f} lr {opt.param_groups[0]['lr']:.2e}")

validator.jobs.put(None)
print("kept checkpoint of step", best_step, "val", best)
