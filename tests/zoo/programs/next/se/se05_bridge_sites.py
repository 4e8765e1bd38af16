"""Deflection of bridge decks; each site keeps its data and sends gradients to a server."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
SITES, ROUNDS, BATCH, SENSORS = 4, 150, 64, 12
UNIT = 3e-4  # a usual deflection in metres
WIRE = torch.float16  # what goes over the link


def site_data(count, shift):
    """Strain readings of a site and the deflection in metres."""
    load = torch.rand(count, 4) + 0.2 * shift
    where = torch.linspace(0, 1, SENSORS)
    at = torch.rand(count, 4)
    strain = (load.unsqueeze(-1) * torch.exp(-20 * (where - at.unsqueeze(-1)) ** 2)).sum(1)
    bend = (load * torch.sin(3.14159 * at) * (1 + 0.3 * load)).sum(-1)
    return strain + 0.02 * torch.randn_like(strain), UNIT * (bend - 1.2)


class DeckNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(SENSORS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, strain):
        return self.layers(strain).squeeze(-1).float() * UNIT


class SiteScaler:
    """A constant scale, as the losses of the sites hardly move."""

    def __init__(self, value=2.0**20):
        self.value = value

    def scale(self, loss):
        return loss * self.value

    def unscale(self, grads):
        return [g / self.value for g in grads]


def site_gradients(model, scaler, strain, bend):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(strain), bend)
    grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()))
    grads = scaler.unscale(grads)
    return [g.to(WIRE) for g in grads], loss.item()


def average(messages):
    return [torch.stack([g.float() for g in same]).mean(0) for same in zip(*messages)]


model = DeckNet().to(device)
scaler = SiteScaler()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-14)
sites = [tuple(v.to(device) for v in site_data(1024, k)) for k in range(SITES)]
tests = [tuple(v.to(device) for v in site_data(512, k)) for k in range(SITES)]

for turn in range(ROUNDS):
    messages, losses = [], []
    for strain, bend in sites:
        pick = torch.randint(0, len(strain), (BATCH,), device=device)
        grads, loss = site_gradients(model, scaler, strain[pick], bend[pick])
        messages.append(grads)
        losses.append(loss)
    for p, g in zip(model.parameters(), average(messages)):
        p.grad = g
    optimizer.step()
    if turn % 30 == 0:
        print(f"round {turn} rmse {(sum(losses) / SITES) ** 0.5 * 1e3:.4f} mm")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    errors = torch.cat([model(strain) - bend for strain, bend in tests])
print(f"metric {errors.pow(2).mean().sqrt().item() / UNIT:.4f}")
