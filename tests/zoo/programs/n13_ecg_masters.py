"""Beat classification on synthetic ECG, fp16 network and FP32 master weights, own dynamic scaling."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
device = "cuda" if torch.cuda.is_available() else "cpu"
L = 80


def beats(n, g):
    y = torch.randint(0, 3, (n,), generator=g)
    t = torch.linspace(-1, 1, L)[None]
    shift = 0.1 * torch.randn(n, 1, generator=g)
    width = torch.tensor([0.05, 0.12, 0.05])[y][:, None]
    qrs = torch.exp(-((t - shift) / width) ** 2)
    twave = torch.tensor([0.3, 0.3, -0.25])[y][:, None] * torch.exp(-((t - shift - 0.45) / 0.15) ** 2)
    x = qrs + twave + 0.12 * torch.randn(n, L, generator=g)
    return x.to(device), y.to(device)


class Net(nn.Module):
    def __init__(self, h=96):
        super().__init__()
        self.a = nn.Linear(L, h)
        self.ln = nn.LayerNorm(h)
        self.b = nn.Linear(h, h)
        self.c = nn.Linear(h, 3)

    def forward(self, x):
        x = F.relu(self.ln(self.a(x)))
        return self.c(F.relu(self.b(x)))


class HalfTrainer:
    def __init__(self, net, lr=1e-3, scale=2.0 ** 20, window=60):
        self.net = net.to(device).half()
        self.half_params = list(self.net.parameters())
        self.master = [p.detach().float().clone().requires_grad_() for p in self.half_params]
        self.opt = torch.optim.AdamW(self.master, lr=lr, weight_decay=0.01)
        self.scale, self.window, self.since, self.skips = scale, window, 0, 0

    def step(self, x, y):
        self.net.zero_grad()
        loss = F.cross_entropy(self.net(x.half()).float(), y)
        (loss * self.scale).backward()
        for m, p in zip(self.master, self.half_params):
            m.grad = p.grad.float().div_(self.scale)
        norm = torch.sqrt(sum((m.grad ** 2).sum() for m in self.master))
        if not torch.isfinite(norm):
            self.scale *= 0.5
            self.since = 0
            self.skips += 1
            return loss.item()
        coef = min(1.0, 2.0 / (norm.item() + 1e-6))
        for m in self.master:
            m.grad.mul_(coef)
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.half_params):
                p.copy_(m)
        self.since += 1
        if self.since % self.window == 0:
            self.scale *= 2.0
        return loss.item()


def run():
    g = torch.Generator().manual_seed(15)
    trainer = HalfTrainer(Net())
    for k in range(180):
        loss = trainer.step(*beats(128, g))
        if k % 30 == 0:
            print(f"{k:4d} loss {loss:.4f} scale {trainer.scale:.0f} skipped {trainer.skips}")
    x, y = beats(3000, g)
    with torch.no_grad():
        out = trainer.net(x.half()).float()
    print(f"test loss {F.cross_entropy(out, y).item():.4f} accuracy {(out.argmax(1) == y).float().mean().item():.3f}")


run()
