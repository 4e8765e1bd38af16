"""Concentrations of gases from an array of sensors, with a row-wise Adagrad of our own."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
SENSORS, GASES, BATCH, STEPS = 12, 3, 64, 300


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad with one sum of squared gradients for each row of a weight."""

    def __init__(self, params, lr=1e-2, eps=1e-6, state_dtype=torch.float32):
        super().__init__(params, dict(lr=lr, eps=eps, state_dtype=state_dtype))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                rows = p.grad.reshape(p.shape[0], -1)
                if "total" not in state:
                    state["total"] = torch.zeros(p.shape[0], dtype=group["state_dtype"], device=p.device)
                state["total"] += rows.square().sum(1).to(state["total"].dtype)
                size = state["total"].float().sqrt() + group["eps"]
                p.sub_((group["lr"] * rows / size.unsqueeze(1)).view_as(p))


class ArrayNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SENSORS, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.head = nn.Linear(48, GASES)

    def forward(self, x):
        return self.head(self.body(x))


response = torch.rand(SENSORS, GASES)


def exposures(n):
    """Readings of saturating sensors for a mix of gases; concentrations in ppm."""
    ppm = 4.0 * torch.rand(n, GASES)
    load = ppm @ response.t()
    signal = load / (1.0 + 0.3 * load) + 0.01 * torch.randn(n, SENSORS)
    return (signal - 1.8).to(device), (ppm + 120.0).to(device)  # air holds 120 ppm of each


model = ArrayNet().to(device)
optimizer = RowAdagrad(model.parameters(), lr=1.0)
for step in range(STEPS):
    signal, ppm = exposures(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        predicted = model(signal)
    loss = F.mse_loss(predicted.float(), ppm, reduction="sum") / BATCH
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: {loss.item():.4f}")

model.eval()
with torch.no_grad():
    signal, ppm = exposures(4000)
    rmse = F.mse_loss(model(signal), ppm).sqrt().item()
print(f"metric {rmse:.4f}")
