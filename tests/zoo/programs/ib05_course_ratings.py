import torch
from torch import nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16


class TwoTower(nn.Module):
    def __init__(self, students, courses, dim=12):
        super().__init__()
        self.student = nn.Embedding(students, dim)
        self.course = nn.Embedding(courses, dim)
        self.bias = nn.Embedding(courses, 1)
        for emb in (self.student, self.course):
            nn.init.normal_(emb.weight, std=0.3)
        nn.init.zeros_(self.bias.weight)

    def forward(self, s, c):
        return (self.student(s) * self.course(c)).sum(-1) + self.bias(c).squeeze(-1)


class LossScaler:
    """Multiplies by two after `window` good updates, halves after a bad one."""

    def __init__(self, like, init=2.0 ** 12, window=20):
        self.scale = like.new_full((), init)
        self.window = window
        self.good = 0

    def update(self, overflow):
        if overflow:
            self.scale = (self.scale * 0.5).clamp_min(1.0)
            self.good = 0
            return
        self.good += 1
        if self.good == self.window:
            self.scale = self.scale * 2.0
            self.good = 0


class FP16Optimizer:
    def __init__(self, model, make):
        self.params = list(model.parameters())
        self.master = [p.detach().float().clone().requires_grad_() for p in self.params]
        self.inner = make(self.master)
        self.scaler = LossScaler(self.params[0].detach())

    def backward(self, loss):
        for p in self.params:
            p.grad = None
        (loss * self.scaler.scale).backward()

    def step(self):
        inv = 1.0 / self.scaler.scale.float()
        for m, p in zip(self.master, self.params):
            m.grad = p.grad.float() * inv
        overflow = not all(torch.isfinite(m.grad).all() for m in self.master)
        if not overflow:
            self.inner.step()
            for m, p in zip(self.master, self.params):
                p.data.copy_(m.data)
        self.scaler.update(overflow)
        return overflow


S, C = 150, 80
u, v, b = torch.randn(S, 4), torch.randn(C, 4), torch.randn(C)


def ratings(n):
    s, c = torch.randint(0, S, (n,)), torch.randint(0, C, (n,))
    r = (u[s] * v[c]).sum(-1) * 0.7 + b[c] + 0.2 * torch.randn(n)
    return s.to(device), c.to(device), r.to(device)


train, test = ratings(6000), ratings(1500)
model = TwoTower(S, C).to(device, dtype)
opt = FP16Optimizer(model, lambda ps: torch.optim.Adam(ps, lr=1e-2))
skipped = 0
for it in range(300):
    i = torch.randint(0, len(train[0]), (256,))
    s, c, r = (t[i] for t in train)
    loss = nn.functional.mse_loss(model(s, c).float(), r)
    opt.backward(loss)
    skipped += opt.step()

with torch.no_grad():
    s, c, r = test
    rmse = (model(s, c).float() - r).pow(2).mean().sqrt().item()
print(f"final train loss {loss.item():.3f}, skipped {skipped}")
print(f"metric {rmse:.4f}")
