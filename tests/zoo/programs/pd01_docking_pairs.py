"""Binding of ligands to pockets, all pairs of a batch. The batch does not fit at once: the embeddings are computed
without a graph, the gradient of the pair loss is cached for each, and the towers then run again chunk by chunk."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

N_LIGAND, N_POCKET, DIM = 24, 20, 16
BATCH, CHUNK, STEPS = 192, 64, 160


class Chemistry:
    """Energies in hartree, so small numbers."""

    def __init__(self):
        self.ligand = torch.randn(N_LIGAND, 5) / N_LIGAND**0.5
        self.pocket = torch.randn(N_POCKET, 5) / N_POCKET**0.5

    def sample(self, n):
        ligands, pockets = torch.randn(n, N_LIGAND), torch.randn(n, N_POCKET)
        energy = 0.0008 * torch.tanh(ligands @ self.ligand) @ torch.tanh(pockets @ self.pocket).T
        return ligands.to(device), pockets.to(device), energy.to(device)


class Tower(nn.Module):
    def __init__(self, n_in, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, width), nn.SiLU(), nn.Linear(width, DIM))

    def forward(self, x):
        return self.net(x)


def pair_loss(ligand_codes, pocket_codes, energy):
    predicted = 0.002 * (ligand_codes.float() @ pocket_codes.float().T)
    return F.mse_loss(predicted, energy)


def embed_all(tower, inputs):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        return torch.cat([tower(chunk) for chunk in inputs.split(CHUNK)])


def backward_chunks(tower, inputs, cached, scaler):
    """Second pass: the graph of one chunk at a time."""
    for chunk, grad in zip(inputs.split(CHUNK), cached.split(CHUNK)):
        with torch.autocast("cuda", dtype=torch.float16):
            codes = tower(chunk)
        surrogate = (codes.float() * grad.float()).sum()
        scaler.scale(surrogate).backward()


chemistry = Chemistry()
ligand_tower, pocket_tower = Tower(N_LIGAND).to(device), Tower(N_POCKET).to(device)
parameters = [*ligand_tower.parameters(), *pocket_tower.parameters()]
optimizer = torch.optim.Adam(parameters, lr=6e-3, eps=1e-12)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    ligands, pockets, energy = chemistry.sample(BATCH)
    ligand_codes = embed_all(ligand_tower, ligands).requires_grad_()
    pocket_codes = embed_all(pocket_tower, pockets).requires_grad_()
    loss = pair_loss(ligand_codes, pocket_codes, energy)
    loss.backward()

    optimizer.zero_grad(set_to_none=True)
    backward_chunks(ligand_tower, ligands, ligand_codes.grad, scaler)
    backward_chunks(pocket_tower, pockets, pocket_codes.grad, scaler)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.3e} scale {scaler.get_scale():.0f}")

ligands, pockets, energy = chemistry.sample(512)
predicted = 0.002 * (embed_all(ligand_tower, ligands).float() @ embed_all(pocket_tower, pockets).float().T)
error = (predicted - energy).square().mean().sqrt() / energy.std()
print(f"metric {error.item():.5f}")
