"""Train a small LM; an evaluation thread scores snapshots on the side and keeps the best one."""
import copy
import math
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CTX, PATIENCE = 120, 48, 6


class BigramMLP(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.body = nn.Sequential(nn.Linear(d, 96), nn.GELU(), nn.Linear(96, d))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        return self.head(self.norm(x + self.body(x)))


def corpus(n, gen):
    table = (1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2))).softmax(-1)
    out = torch.empty(n, CTX + 1, dtype=torch.long)
    out[:, 0] = torch.randint(VOCAB, (n,), generator=gen)
    for t in range(CTX):
        out[:, t + 1] = torch.multinomial(table[out[:, t]], 1, generator=gen).squeeze(1)
    return out.to(device)


class Evaluator(threading.Thread):
    """Takes half precision snapshots so that evaluation does not double the memory."""

    def __init__(self, batches):
        super().__init__(daemon=True)
        self.batches, self.inbox = batches, queue.Queue(maxsize=1)
        self.best, self.best_step, self.stale = math.inf, None, 0
        self.give_up = threading.Event()

    @torch.no_grad()
    def validation_loss(self, model):
        total, tokens = 0.0, 0
        for batch in self.batches:
            logits = model(batch[:, :-1])
            total = total + F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
            tokens += batch[:, 1:].numel()
        return (total / tokens).item()

    def run(self):
        while True:
            item = self.inbox.get()
            if item is not None:
                step, snapshot, weights = item
                loss = self.validation_loss(snapshot)
                print(f"  [eval] step {step:3d} val loss {loss:.4f}")
                if loss < self.best:
                    self.best, self.best_step, self.stale = loss, step, 0
                    self.best_weights = weights
                else:
                    self.stale += 1
                    if self.stale >= PATIENCE:
                        self.give_up.set()
            self.inbox.task_done()
            if item is None:
                return


gen = torch.Generator().manual_seed(4)
train, val = corpus(512, gen), corpus(512, gen)
model = BigramMLP().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
evaluator = Evaluator(val.split(64))
evaluator.best_weights = copy.deepcopy(model.state_dict())
evaluator.start()

for step in range(241):
    batch = train[torch.randint(len(train), (32,), generator=gen).to(device)]
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"step {step:3d} train loss {loss.item():.4f}")
        evaluator.inbox.join()
        if evaluator.give_up.is_set():
            print("early stop")
            break
        evaluator.inbox.put((step, copy.deepcopy(model).half(), copy.deepcopy(model.state_dict())))

evaluator.inbox.put(None)
evaluator.join()
model.load_state_dict(evaluator.best_weights)
with torch.no_grad():
    final = F.cross_entropy(model(val[:, :-1]).flatten(0, 1), val[:, 1:].flatten())
print(f"restored weights of step {evaluator.best_step}: validation loss {final.item():.4f}")
