"""Learned odometry of delivery robots: wheel and gyro readings give steps, the position is carried from chunk to chunk."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"

ROBOTS, TICKS, CHUNKS = 96, 3, 150  # robots side by side, ticks of 50 ms in a chunk, chunks in training
DRIVE = 400  # ticks of a test drive
DEPOT = torch.tensor([140.0, 90.0], device=device)  # on the map of the district, metres


class Fleet:
    """Robots that drive along streets; wheels slip with speed and load."""

    def __init__(self, n):
        self.heading = torch.rand(n) * 2 * torch.pi
        self.speed = 0.5 + 1.2 * torch.rand(n)
        self.load = torch.rand(n)
        self.turn = torch.zeros(n)

    def tick(self):
        n = len(self.speed)
        self.turn = 0.9 * self.turn + 0.02 * torch.randn(n)
        self.heading = self.heading + 0.05 * self.turn
        self.speed = (self.speed + 0.02 * torch.randn(n)).clamp(0.5, 1.7)
        step = 0.05 * self.speed
        moved = torch.stack([step * torch.cos(self.heading), step * torch.sin(self.heading)], 1)
        wheel = self.speed * (1 + 0.25 * self.load * self.speed)
        seen = torch.stack([wheel, self.load, torch.cos(self.heading), torch.sin(self.heading)], 1)
        return (seen + 0.01 * torch.randn(n, 4)).to(device), moved.to(device)


class Odometer(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.speed = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.turn = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, seen, position):
        """Position after a tick."""
        along = 1 + self.speed(seen[:, :2])
        direction = seen[:, 2:].to(along.dtype) + 0.1 * self.turn(seen)
        return position + 0.05 * along * direction


model = Odometer().to(device)
opt = torch.optim.Adam(model.parameters(), lr=6e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, CHUNKS)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

fleet = Fleet(ROBOTS)
position = DEPOT.to(torch.float16).repeat(ROBOTS, 1)
for chunk in range(CHUNKS):
    begin, truth = position, torch.zeros(ROBOTS, 2, device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        for _ in range(TICKS):
            seen, moved = fleet.tick()
            position = model(seen, position)
            truth = truth + moved
        loss = F.mse_loss(position - begin, truth) * 100
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    position = position.detach()

# A new drive from the depot: how far off is the position at its end?
model.eval()
fleet = Fleet(256)
position = DEPOT.to(torch.float16).repeat(256, 1)
truth = DEPOT.repeat(256, 1)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for _ in range(DRIVE):
        seen, moved = fleet.tick()
        position = model(seen, position)
        truth = truth + moved
off = (position.float() - truth).norm(dim=1).mean()
print(f"driven {(truth - DEPOT).norm(dim=1).mean().item():.1f} m")
print(f"metric {off.item():.4f}")
