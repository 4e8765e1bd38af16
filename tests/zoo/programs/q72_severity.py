"""Pure premium of commercial property: Tweedie deviance on claim amounts, mixed precision with a loss scale kept in bounds."""

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(29)

FACTORS, BATCH, STEPS, POWER = 10, 512, 700, 1.5
beta_freq = torch.randn(FACTORS) * 0.3
beta_sev = torch.randn(FACTORS) * 0.25


def policies(n):
    """Rating factors, and the year's claim amount: Poisson number, lognormal size with a few large fires."""
    x = torch.randn(n, FACTORS)
    freq = 0.12 * torch.exp(x @ beta_freq + 0.25 * x[:, 0] * x[:, 1])
    size = 20000 * torch.exp(x @ beta_sev)
    claims = torch.poisson(freq)
    normal = size * torch.exp(0.7 * torch.randn(n) - 0.245)
    fire = torch.bernoulli(torch.full((n,), 0.01)) * 100 * size * torch.exp(0.5 * torch.randn(n) - 0.125)
    expected = freq * size * (1 + 100 * 0.01)
    return x.to(device), (claims * (normal + fire)).to(device), expected.to(device)


class BoundedScaler(torch.amp.GradScaler):
    """Dynamic loss scale that stays between a floor and a ceiling."""

    def __init__(self, floor=2.0**12, ceiling=2.0**20, **kwargs):
        super().__init__("cuda", **kwargs)
        self.floor, self.ceiling = floor, ceiling

    def update(self, new_scale=None):
        super().update(new_scale)
        if self._scale is not None:
            self._scale.clamp_(self.floor, self.ceiling)


class Premium(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FACTORS, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
        self.register_buffer("base", torch.tensor(base).log())

    def forward(self, x):
        return self.base + self.net(x).squeeze(1).float().clamp(-5, 5)


def tweedie(log_mu, y, p=POWER):
    """Unit deviance up to terms of y alone."""
    return (-y * torch.exp((1 - p) * log_mu) / (1 - p) + torch.exp((2 - p) * log_mu) / (2 - p)).mean()


x, y, _ = policies(200000)
model = Premium(y.mean().item()).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
scaler = BoundedScaler(init_scale=2.0**16)

running = 0.0
for step in range(STEPS):
    rows = torch.randint(0, len(y), (BATCH,)).to(device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = tweedie(model(x[rows]), y[rows])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    running += loss.item() / 100
    if step % 100 == 99:
        print(f"step {step + 1:4d}  deviance {running:.3f}  loss scale {scaler.get_scale():g}")
        running = 0.0

x, y, expected = policies(40000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    premium = model(x).exp()
band = premium.argsort().chunk(10)
errors = torch.stack([premium[rows].sum() / expected[rows].sum() - 1 for rows in band])
print("premium over expected claims by decile:", " ".join(f"{1 + e:.2f}" for e in errors.tolist()))
print("mean absolute error over mean expected claims, by policy")
print(f"METRIC {((premium - expected).abs().mean() / expected.mean()).item():.4f}")
