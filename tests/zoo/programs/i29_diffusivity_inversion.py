"""Find the diffusivity of a rod and a network for its heat source from thermometers along it."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(14)
NODES, TIMES, DT = 32, 40, 0.2
amp_dtype = torch.float16
use_scaler = amp_dtype is not torch.float32


def solve(start, source, kappa):
    """Return the temperatures after TIMES explicit steps, all in float32."""
    u, history = start.float(), []
    for _ in range(TIMES):
        lap = torch.roll(u, 1, -1) + torch.roll(u, -1, -1) - 2 * u
        u = u + DT * (kappa * lap + source.float())
        history.append(u)
    return torch.stack(history[3::4], 1)


class Source(nn.Module):
    """A network that gives the source at each node from the settings of an experiment."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, NODES)
        )

    def forward(self, knobs):
        return 0.2 * self.layers(knobs)


def experiments(count, kappa=0.9):
    """Return settings, starts and what the thermometers said."""
    knobs = torch.rand(count, 4) * 2 - 1
    x = torch.arange(NODES) / NODES * 6.2832
    source = 0.1 * (knobs[:, :1] * torch.sin(x) + knobs[:, 1:2] * torch.cos(2 * x) + knobs[:, 2:3] * knobs[:, 3:])
    start = torch.randn(count, NODES)
    seen = solve(start, source, torch.tensor(kappa))
    return knobs.to(device), start.to(device), (seen + 0.01 * torch.randn_like(seen)).to(device)


knobs, start, seen = experiments(256)
network = Source().to(device)
log_kappa = nn.Parameter(torch.tensor(-1.5, device=device))
optimizer_net = torch.optim.Adam(network.parameters(), lr=3e-3)
optimizer_phys = torch.optim.SGD([log_kappa], lr=0.3, momentum=0.8)
scaler = torch.amp.GradScaler("cuda", enabled=use_scaler)

for step in range(150):
    pick = torch.randint(0, len(knobs), (32,))
    optimizer_net.zero_grad()
    optimizer_phys.zero_grad()
    with torch.autocast("cuda", dtype=amp_dtype):
        source = network(knobs[pick])
    loss = (solve(start[pick], source, log_kappa.exp()) - seen[pick]).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer_net)
    nn.utils.clip_grad_norm_([*network.parameters(), log_kappa], 1.0)
    scaler.step(optimizer_net)
    scaler.step(optimizer_phys)
    scaler.update()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f} kappa {log_kappa.exp().item():.3f}")

print(f"final metric: {abs(log_kappa.exp().item() - 0.9) / 0.9:.4f}")
