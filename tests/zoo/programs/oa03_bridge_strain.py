"""Bridge monitoring: one trunk reads the gauges; two outputs, deck temperature (deg C / 10) and strain (m/m)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
MICROSTRAIN = 1e-4


class SignMomentum(torch.optim.Optimizer):
    """Sign of a moving average of the gradients. The average is stored in two bytes per weight."""

    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "average" not in state:
                    state["average"] = torch.zeros_like(p, dtype=torch.float16)
                average = state["average"]
                average.mul_(group["beta"]).add_(p.grad.to(average.dtype), alpha=1 - group["beta"])
                p.add_(average.sign().to(p.dtype), alpha=-group["lr"])


class BridgeNet(nn.Module):
    def __init__(self, gauges=12, width=40):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(gauges, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.temperature = nn.Linear(width, 1)
        self.strain = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x):
        h = self.trunk(x)
        return self.temperature(h).squeeze(-1).float(), MICROSTRAIN * self.strain(h).squeeze(-1).float()


def readings(n, mix):
    load, heat = torch.randn(n), torch.randn(n)
    x = torch.stack([load, heat, load * heat], -1) @ mix + 0.05 * torch.randn(n, mix.shape[1])
    strain = MICROSTRAIN * (load + 0.5 * torch.sin(2 * heat))
    return x.to(device), heat.to(device), strain.to(device)


def train(model, mix, steps=300, peak=2e-3):
    optimizer = SignMomentum(model.parameters(), lr=peak)
    history = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * (1 - step / steps)
        x, heat, strain = readings(128, mix)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            heat_hat, strain_hat = model(x)
            loss = F.mse_loss(heat_hat, heat) + F.mse_loss(strain_hat, strain)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


torch.manual_seed(21)
mix = torch.randn(3, 12) * 0.6
model = BridgeNet().to(device)
history = train(model, mix)
print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")
x, heat, strain = readings(3000, mix)
with torch.no_grad():
    heat_hat, strain_hat = model(x)
print(f"temperature: {((heat_hat - heat).square().mean() / heat.var()).item():.4f}")
print(f"metric {((strain_hat - strain).square().mean() / strain.var()).item():.4f}")
