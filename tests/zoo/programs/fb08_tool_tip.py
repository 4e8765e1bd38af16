"""Working point of a surgical tool from four markers around it; keeps the weights with the best tracking error."""
import copy

import torch
from torch import nn

torch.manual_seed(6)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Tracker:
    """The tool stands in a 60 mm work volume somewhere in the room frame of the camera (mm)."""

    def __init__(self, seed):
        self.gen = torch.Generator()
        self.gen.manual_seed(seed)
        self.origin = torch.tensor([-846.0, 431.0, 1217.0])
        self.extent = 60.0
        self.markers = torch.tensor([[35.0, 0, 10], [-30, 20, 0], [0, -30, 20], [5, 10, -30]])

    def draw(self, n):
        tip = torch.rand(n, 3, generator=self.gen) * self.extent
        skew = torch.randn(n, 3, 3, generator=self.gen) * 0.3
        turn = torch.matrix_exp(skew - skew.transpose(1, 2))
        seen = tip[:, None] + self.markers @ turn.transpose(1, 2)
        seen = seen + 0.03 * torch.randn(seen.shape, generator=self.gen)
        x = seen.flatten(1) / self.extent - 0.5
        return x.to(device), (tip / self.extent - 0.5).to(device), (tip + self.origin).to(device)


class TipNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.direct = nn.Linear(12, 3)
        self.refine = nn.Sequential(nn.Linear(12, hidden), nn.SiLU(), nn.Linear(hidden, 3))
        nn.init.zeros_(self.refine[-1].weight)
        nn.init.zeros_(self.refine[-1].bias)

    def forward(self, x):
        return self.direct(x) + self.refine(x)


def to_room(tracker, unit):
    origin = tracker.origin.to(unit)
    return (unit + 0.5) * tracker.extent + origin


@torch.no_grad()
def tracking_error(net, tracker, x, room):
    net.eval()
    with torch.autocast("cuda", dtype=torch.float16):
        found = to_room(tracker, net(x))
    net.train()
    return (found - room).norm(dim=-1).mean().item()


tracker = Tracker(60)
val_x, _, val_room = tracker.draw(500)
test_x, _, test_room = tracker.draw(1000)
net = TipNet().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
plan = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-2, total_steps=300)
scaler = torch.amp.GradScaler("cuda")
best, best_state = float("inf"), None

for step in range(300):
    x, unit, _ = tracker.draw(64)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.smooth_l1_loss(net(x), unit, beta=0.05)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    plan.step()
    if step % 20 == 19:
        error = tracking_error(net, tracker, val_x, val_room)
        if error < best:
            best, best_state = error, copy.deepcopy(net.state_dict())
        if step % 60 == 59:
            print(f"step {step} loss {loss.item():.6f} error {error:.3f} mm")

net.load_state_dict(best_state)
print(f"metric {tracking_error(net, tracker, test_x, test_room):.4f}")
