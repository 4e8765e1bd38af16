import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB, DIM, HID, CTX, BATCH, STEPS = 60, 32, 64, 24, 32, 121


def make_text(n):
    follow = torch.randint(0, VOCAB, (VOCAB, VOCAB, 2))
    coin = torch.rand(n)
    out = [1, 2]
    for k in range(n - 2):
        out.append(int(follow[out[-2] % 6, out[-1], int(coin[k] > 0.8)]))
    return torch.tensor(out)


class Cell(nn.Module):
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.x2h = nn.Linear(n_in, 3 * n_hid)
        self.h2h = nn.Linear(n_hid, 3 * n_hid)

    def forward(self, x, h):
        xr, xz, xn = self.x2h(x).chunk(3, dim=-1)
        hr, hz, hn = self.h2h(h).chunk(3, dim=-1)
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        return (1 - z) * n + z * h


class RecurrentLM(nn.Module):
    def __init__(self, clip=0.1):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.cell = Cell(DIM, HID)
        self.out = nn.Linear(HID, VOCAB)
        self.clip = clip

    def forward(self, idx):
        x = self.emb(idx)
        h = x.new_zeros(idx.shape[0], HID)
        states = []
        for t in range(idx.shape[1]):
            h = self.cell(x[:, t], h)
            if h.requires_grad:
                h.register_hook(lambda g: g.clamp(-self.clip, self.clip))
            states.append(h)
        return self.out(torch.stack(states, dim=1))


text = make_text(20000)
model = RecurrentLM().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 16)

for step in range(STEPS):
    start = torch.randint(0, len(text) - CTX - 1, (BATCH,))
    chunk = torch.stack([text[s:s + CTX + 1] for s in start.tolist()]).to(device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(chunk[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), chunk[:, 1:].reshape(-1))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 40 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.3f} ppl {math.exp(loss.item()):.1f}")
