"""Continual learning (A-GEM): tip displacement of a soft actuator, first silicone, then latex; displacements in metres."""
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(31)

SENSORS, BATCH, MEMORY = 10, 64, 128
MILLIMETRE = 1e-3
stiffness = {"silicone": torch.randn(SENSORS, 6), "latex": torch.randn(SENSORS, 6)}
mixing = {"silicone": torch.randn(6), "latex": torch.randn(6)}


def bench(material, n):
    pressure = torch.randn(n, SENSORS)
    bend = torch.tanh(pressure @ stiffness[material] / 3) @ mixing[material]
    tag = torch.full((n, 1), 1.0 if material == "latex" else -1.0)
    return torch.cat([pressure, tag], 1).to(device), (0.5 * MILLIMETRE * bend).to(device)


class TipModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(SENSORS + 1, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)
        )

    def forward(self, x):
        return 0.01 * self.layers(x).squeeze(-1).float()


model = TipModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-14)
scaler = torch.amp.GradScaler("cuda")


def loss_on(x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return F.mse_loss(model(x), y)


def unscaled_grads(loss):
    grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()))
    return [g / scaler.get_scale() for g in grads]


def flatten(grads):
    return torch.cat([g.flatten() for g in grads]).half()


def protect(grads, reference):
    g, ref = flatten(grads), flatten(reference)
    overlap = (g * ref).sum()
    if overlap < 0:
        factor = overlap / (ref * ref).sum()
        return [a - factor * b for a, b in zip(grads, reference)]
    return grads


def fit(material, steps, memory=None):
    for step in range(steps):
        x, y = bench(material, BATCH)
        loss = loss_on(x, y)
        grads = unscaled_grads(loss)
        if memory is not None:
            grads = protect(grads, unscaled_grads(loss_on(*memory)))
        for p, g in zip(model.parameters(), grads):
            p.grad = g
        optimizer.step()
        if step % 100 == 0:
            print(f"{material:9s} step {step:3d}  rmse {loss.sqrt().item() / MILLIMETRE:.4f} mm")


def report(material):
    x, y = bench(material, 2000)
    with torch.no_grad():
        return ((model(x) - y).pow(2).mean() / y.var()).item()


fit("silicone", 500)
first = report("silicone")
keep = bench("silicone", MEMORY)
fit("latex", 400, memory=keep)
print(f"unexplained variance: silicone before {first:.4f}, after {report('silicone'):.4f}; latex {report('latex'):.4f}")
