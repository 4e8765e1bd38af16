"""Predict the settling of sludge in a basin (metres) from its dosing pumps, charge by charge."""
import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

PUMPS, AHEAD = 10, 6
STEPS, WINDOWS = 220, 96


class StaticScaler:
    """Loss scaling with a constant factor; a step with a gradient that is not finite is left out."""

    def __init__(self, scale):
        self.scale, self.skipped = scale, 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if all(torch.isfinite(grad).all() for grad in grads):
            torch._foreach_mul_(grads, 1 / self.scale)
            optimizer.step()
        else:
            self.skipped += 1
        optimizer.zero_grad(set_to_none=True)


def make_charge(shock):
    """The windows of one charge; a shock charge has a few times the dose."""
    strength = (1.5 + 0.8 * torch.rand(1, device=device)) if shock else (0.2 + 0.6 * torch.rand(1, device=device))
    dose = strength * torch.rand(WINDOWS, PUMPS, device=device)
    basin = dose[:, :5].mean(1, keepdim=True)
    upper = dose[:, 5:].mean(1, keepdim=True)
    lead = torch.arange(1, AHEAD + 1, device=device) / AHEAD
    level = 0.5 * basin * (1.5 - lead) + 0.6 * torch.relu(upper - 1.0) ** 1.5 * lead
    return dose, level + 0.1 * torch.randn(WINDOWS, AHEAD, device=device)


class BasinNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(PUMPS, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU(),
                                 nn.Linear(dim, AHEAD))

    def forward(self, dose):
        return self.net(dose)


model = BasinNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = StaticScaler(2.0**10)

for step in range(STEPS):
    dose, level = make_charge(shock=step % 4 == 3)
    with torch.autocast("cuda", dtype=torch.float16):
        pred = model(dose)
        loss = ((pred.float() - level) ** 2).mean(0).sum()
    scaler.backward(loss)
    scaler.step(optimizer)
    if step % 52 == 3:
        print(f"step {step} shock loss {loss.item():.4f}")

print(f"skipped {scaler.skipped}")
model.eval()
errors = []
with torch.no_grad():
    for charge in range(80):
        dose, level = make_charge(shock=charge % 2 == 1)
        errors.append((model(dose) - level).pow(2).mean().sqrt())
print(f"metric {torch.stack(errors).mean().item():.4f}")
