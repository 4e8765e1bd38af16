"""Insurance pricing: claim frequency by a Poisson network on tariff features, with exposure."""
import torch
from torch import nn

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
POLICIES, BATCH, STEPS = 24000, 256, 900


class SteadyScaler(torch.amp.GradScaler):
    """A GradScaler for long runs: one bad entry of a gradient shall not cost a whole step."""

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        super().unscale_(optimizer)


def portfolio():
    """Policies with numeric tariff features, a region and claims of a year."""
    x = torch.randn(POLICIES, 10, device=device)
    region = torch.randint(40, (POLICIES,), device=device)
    exposure = 0.2 + 0.8 * torch.rand(POLICIES, device=device)
    area = 0.5 * torch.randn(40, device=device)
    rate = -0.8 + area[region] + 0.5 * torch.tanh(x[:, 0] * x[:, 1]) + 0.6 * x[:, 2].abs() - 0.5 * x[:, 3]
    rate = rate + 0.5 * torch.sin(2 * x[:, 4]) + 0.4 * x[:, 5] * (x[:, 6] > 0)
    claims = torch.poisson(exposure * rate.exp())
    return x, region, exposure, claims, rate


class Tariff(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(40, 6)
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x, region):
        return self.net(torch.cat([x, self.region(region)], 1)).squeeze(1).float()


x, region, exposure, claims, rate = portfolio()
train = 18000
model = Tariff().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
scaler = SteadyScaler("cuda", growth_interval=25)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, STEPS)
for step in range(STEPS):
    rows = torch.randint(train, (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(x[rows], region[rows])
        loss = nn.functional.poisson_nll_loss(score + exposure[rows].log(), claims[rows])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 150 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    guess = model(x[train:], region[train:])
error = (guess - rate[train:]).square().mean().sqrt()
print(f"METRIC {error.item():.4f}")
