"""Expected size of insurance claims from policy data, with hand-made loss scaling."""
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
POLICIES, FIELDS, REGIONS, STEPS, BATCH = 30000, 12, 20, 2000, 128


def portfolio(n):
    """Policies and the sizes of their claims in thousands; few are large, and what makes them large is known."""
    x = torch.randn(n, FIELDS, device=device)
    region = torch.randint(REGIONS, (n,), device=device)
    small = 2 + x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 0.1 * (region - REGIONS / 2)
    exposed = (x[:, 3] > 1.6) & (x[:, 4] > 1.2)
    large = exposed * (60 + 20 * x[:, 5] + 4 * torch.randn(n, device=device)).clamp_min(0)
    return x, region, small + large + 0.5 * torch.randn(n, device=device)


class Severity(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.region = nn.Embedding(REGIONS, 8)
        self.body = nn.Sequential(
            nn.Linear(FIELDS + 8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x, region):
        return self.body(torch.cat([x, self.region(region)], 1)).squeeze(1)


class LossScale:
    """Scales the loss for FP16, and leaves out a step whose gradients are not finite."""

    def __init__(self, factor):
        self.factor, self.skipped = factor, 0

    def backward(self, loss):
        (loss * self.factor).backward()

    @torch.no_grad()
    def step(self, optimizer, parameters):
        grads = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_div_(grads, self.factor)
        if all(torch.isfinite(g).all() for g in grads):
            optimizer.step()
        else:
            self.skipped += 1


x, region, size = portfolio(POLICIES)
model = Severity().to(device)
parameters = list(model.parameters())
opt = torch.optim.Adam(parameters, lr=2e-3)
scale = LossScale(2.0**14)
for step in range(STEPS):
    rows = torch.randint(POLICIES, (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x[rows], region[rows]), size[rows])
    opt.zero_grad()
    scale.backward(loss)
    scale.step(opt, parameters)
    if step % 250 == 0:
        print(f"step {step} mse {loss.item():.3f} skipped {scale.skipped}")

x, region, size = portfolio(POLICIES)
with torch.no_grad():
    error = (model(x, region) - size).pow(2).mean()
print(f"METRIC {error.item():.4f}")
