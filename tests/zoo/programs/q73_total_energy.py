"""Total energies of small CHNO molecules: fitted atomic reference energies plus a pairwise interaction network.

Energies in Hartree, distances in Angstrom. Element order H, C, N, O.
"""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

FREE_ATOM = torch.tensor([-0.502, -37.846, -54.584, -75.065])
DEPTH = torch.tensor([[0.06, 0.05, 0.07, 0.08], [0.05, 0.10, 0.11, 0.13],
                      [0.07, 0.11, 0.09, 0.07], [0.08, 0.13, 0.07, 0.05]])
LENGTH = torch.tensor([[0.8, 1.1, 1.0, 1.0], [1.1, 1.5, 1.4, 1.4], [1.0, 1.4, 1.4, 1.3], [1.0, 1.4, 1.3, 1.4]])
ATOMS = 8


def molecules(n):
    """Random geometries on a jittered grid with Morse pair energies."""
    z = torch.multinomial(torch.tensor([0.45, 0.35, 0.08, 0.12]), n * ATOMS, replacement=True).view(n, ATOMS)
    sites = torch.cartesian_prod(torch.arange(2.0), torch.arange(2.0), torch.arange(2.0)) * 1.5
    pos = sites + 0.18 * torch.randn(n, ATOMS, 3)
    i, j = torch.triu_indices(ATOMS, ATOMS, 1)
    r = (pos[:, i] - pos[:, j]).norm(dim=-1)
    d, r0 = DEPTH[z[:, i], z[:, j]], LENGTH[z[:, i], z[:, j]]
    pair = d * ((1 - torch.exp(-1.6 * (r - r0))).clamp(max=2.5) ** 2 - 1)
    return z, r, FREE_ATOM[z].sum(1) + pair.sum(1)


class PairNet(nn.Module):
    def __init__(self, width=32, radial=20):
        super().__init__()
        self.atomref = nn.Linear(4, 1, bias=False)
        self.element = nn.Embedding(4, 8)
        self.filter = nn.Sequential(nn.Linear(radial, width), nn.SiLU(), nn.Linear(width, width))
        self.mix = nn.Linear(8, width)
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("centres", torch.linspace(0.5, 4.5, radial))
        self.register_buffer("pairs", torch.triu_indices(ATOMS, ATOMS, 1))

    def forward(self, z, r):
        i, j = self.pairs
        rbf = torch.exp(-8.0 * (r[..., None] - self.centres) ** 2)
        h = self.mix(self.element(z))
        pair = self.filter(rbf) * (h[:, i] * h[:, j] + h[:, i] + h[:, j])
        interaction = self.readout(pair).squeeze(-1).sum(-1)
        counts = F.one_hot(z, 4).sum(1).float()
        reference = self.atomref(counts).squeeze(-1)
        return reference + 0.1 * interaction


z, r, energy = (t.to(device) for t in molecules(3000))
z_test, r_test, energy_test = (t.to(device) for t in molecules(500))

model = PairNet().to(device)
counts = F.one_hot(z, 4).sum(1).float()
with torch.no_grad():
    fit = torch.linalg.lstsq(counts.double().cpu(), energy.double().cpu()[:, None]).solution
    model.atomref.weight.copy_(fit.T)
groups = [
    {"params": [p for n, p in model.named_parameters() if not n.startswith("atomref")], "lr": 3e-3},
    {"params": model.atomref.parameters(), "lr": 1e-4},
]
optimizer = torch.optim.Adam(groups)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.88**e)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
for epoch in range(24):
    total = 0.0
    for batch in torch.randperm(len(z)).to(device).split(100):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.smooth_l1_loss(model(z[batch], r[batch]), energy[batch], beta=0.05)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    schedule.step()
    if epoch % 4 == 3:
        print(f"epoch {epoch} loss {total / 30:.5f} E0(C) {model.atomref.weight[0, 1].item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(z_test, r_test) - energy_test).abs().mean()
print("METRIC", error.item() * 27.2114)
