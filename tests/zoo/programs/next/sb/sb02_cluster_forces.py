"""Force matching for a small argon-like cluster: energy network on inverse distances, forces from its gradient."""
import torch
from torch import nn

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"
ATOMS, BATCH, STEPS = 5, 128, 120
MICROHARTREE = 1e-6  # the network speaks micro-Hartree, the reference data Hartree and Bohr

grid = torch.tensor([[0., 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
left, right = torch.triu_indices(ATOMS, ATOMS, 1)


def distances(pos):
    return (pos[:, left] - pos[:, right]).norm(dim=-1)


def reference(count):
    """Geometries around a compact cluster with Morse forces and the noise of the reference method."""
    pos = (grid + 0.12 * torch.randn(count, ATOMS, 3)).requires_grad_()
    bond = 1 - torch.exp(-1.5 * (distances(pos) - 1.2))
    energy = 20 * MICROHARTREE * bond.pow(2).sum(1)
    (slope,) = torch.autograd.grad(energy.sum(), pos)
    return pos.detach(), -slope


class Potential(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        pairs = ATOMS * (ATOMS - 1) // 2
        self.net = nn.Sequential(
            nn.Linear(pairs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )

    def forward(self, pos):
        return self.net(1.0 / distances(pos)).squeeze(-1).float()  # micro-Hartree


def predict_forces(model, pos, create_graph):
    pos = pos.detach().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        energy = model(pos) * MICROHARTREE
    (slope,) = torch.autograd.grad(energy.mean(), pos, create_graph=create_graph)
    return -slope * len(pos)


train_pos, train_force = reference(2048)
test_pos, test_force = reference(1024)
force_scale = train_force.std()
train_force = train_force + 0.1 * force_scale * torch.randn_like(train_force)
train_pos, train_force = train_pos.to(device), train_force.to(device)
test_pos, test_force, force_scale = test_pos.to(device), test_force.to(device), force_scale.to(device)

model = Potential().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)

for step in range(STEPS):
    index = torch.randint(len(train_pos), (BATCH,), device=device)
    forces = predict_forces(model, train_pos[index], create_graph=True)
    loss = ((forces - train_force[index]) / force_scale).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} force loss {loss.item():.4f}")

error = predict_forces(model, test_pos, create_graph=False) - test_force
print(f"metric {(error / force_scale).pow(2).mean().sqrt().item():.4f}")
