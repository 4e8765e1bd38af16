"""Char-level name generator; a Shampoo optimizer refreshes its factors on the same pool that runs the shards."""
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(6)


def init_worker():
    ctx = torch.autocast(device, dtype=torch.float16)
    ctx.__enter__()


pool = ThreadPoolExecutor(2, initializer=init_worker)


def refresh(state, g):
    """Left and right statistics and their inverse fourth roots."""
    state["L"] += g @ g.t()
    state["R"] += g.t() @ g
    for side, root in (("L", "Li"), ("R", "Ri")):
        val, vec = torch.linalg.eigh(state[side])
        state[root] = ((vec * val.clamp_min(1e-12).pow(-0.25)) @ vec.t()).float()


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        jobs = []
        for group in self.param_groups:
            for p in group["params"]:
                st, g = self.state[p], p.grad
                if "m" not in st:
                    st["m"] = torch.zeros_like(p)
                    if p.dim() == 2:
                        st["L"] = 1e-9 * torch.eye(p.shape[0], device=p.device)
                        st["R"] = 1e-9 * torch.eye(p.shape[1], device=p.device)
                if p.dim() == 2:
                    jobs.append(pool.submit(refresh, st, g))
        for j in jobs:
            j.result()
        for group in self.param_groups:
            for p in group["params"]:
                st, g = self.state[p], p.grad
                d = st["Li"] @ g @ st["Ri"] if p.dim() == 2 else g
                st["m"].mul_(group["momentum"]).add_(d)
                p.add_(st["m"], alpha=-group["lr"])


SYL = ["ka", "ro", "mi", "ten", "sul", "bar", "e", "lin", "do", "vash", "qui", "or"]
CHARS = sorted(set("".join(SYL))) + ["."]
IDX = {c: i for i, c in enumerate(CHARS)}
CTX = 5


def names(n, gen):
    xs, ys = [], []
    nxt = torch.randint(0, len(SYL), (n, 3), generator=gen)
    for row in nxt.tolist():
        row[1] = (row[0] * 5 + row[1] % 3) % len(SYL)
        word = "." * CTX + "".join(SYL[k] for k in row) + "."
        for t in range(CTX, len(word)):
            xs.append([IDX[c] for c in word[t - CTX:t]])
            ys.append(IDX[word[t]])
    return torch.tensor(xs, device=device), torch.tensor(ys, device=device)


class NameNet(nn.Module):
    def __init__(self, d=12, h=80):
        super().__init__()
        self.emb = nn.Embedding(len(CHARS), d)
        self.fc1 = nn.Linear(d * CTX, h)
        self.fc2 = nn.Linear(h, h)
        self.out = nn.Linear(h, len(CHARS))

    def forward(self, x):
        h = torch.tanh(self.fc1(self.emb(x).flatten(1)))
        return self.out(torch.tanh(self.fc2(h)))


net, gen = NameNet().to(device), torch.Generator().manual_seed(0)
opt = Shampoo(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler(device, init_scale=4096.0)
for step in range(100):
    x, y = names(64, gen)
    logits = list(pool.map(net, x.chunk(2)))
    loss = F.cross_entropy(torch.cat(logits).float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step + 1} nll {loss.item():.4f}")
