"""Learn to set the heating valves of a building by going through a model of its rooms."""
import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

ZONES, HORIZON = 4, 12
STEPS, BATCH = 130, 64
loss_rate = torch.tensor([0.10, 0.14, 0.08, 0.12], device=device)  # to the outside, per step
power = torch.tensor([3.0, 3.5, 2.5, 3.0], device=device)  # K per step at a fully open valve


class ValvePolicy(nn.Module):
    """Openings between 0 and 1 from room temperatures, outdoor temperature and wish."""

    def __init__(self, dim=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * ZONES + 1, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.opening = nn.Linear(dim, ZONES)
        nn.init.normal_(self.opening.weight, std=0.02)
        nn.init.constant_(self.opening.bias, 7.0)  # valves open until told otherwise, for frost

    def forward(self, rooms, outside, wish):
        state = torch.cat([(rooms - 20) / 5, (outside - 5) / 10, (wish - 20) / 2], dim=1)
        return torch.sigmoid(self.opening(self.body(state)))


def start(n):
    rooms = 16 + 6 * torch.rand(n, ZONES, device=device)
    outside = -5 + 20 * torch.rand(n, 1, device=device)
    wish = 18 + 4 * torch.rand(n, ZONES, device=device)
    return rooms, outside, wish


def run(policy, n):
    """Return the mean cost of a day: discomfort and heat."""
    rooms, outside, wish = start(n)
    cost = torch.zeros(n, device=device)
    for _ in range(HORIZON):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            opening = policy(rooms, outside, wish)
        opening = opening.float()
        rooms = rooms + power * opening - loss_rate * (rooms - outside)
        rooms = rooms + 0.05 * (rooms.mean(1, keepdim=True) - rooms)  # through the walls
        cost = cost + ((rooms - wish) ** 2).mean(1) + 0.05 * opening.mean(1)
    return cost.mean() / HORIZON


policy = ValvePolicy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

for step in range(STEPS):
    cost = run(policy, BATCH)
    optimizer.zero_grad(set_to_none=True)
    cost.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} cost {cost.item():.3f}")

policy.eval()
with torch.no_grad():
    final = sum(run(policy, 1000).item() for _ in range(4)) / 4
print(f"metric {final:.4f}")
