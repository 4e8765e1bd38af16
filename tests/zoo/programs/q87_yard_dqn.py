# Double dueling Q-learning for container-yard dispatching (which lane to serve), waiting costs in euros.
# Loss scaling follows jmp: StaticLossScale.scale / .unscale around the gradient.
import copy

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
LANES, GAMMA, ENVS, BATCH, STEPS = 5, 0.9, 32, 128, 1200


class StaticLossScale:
    def __init__(self, loss_scale):
        self.loss_scale = loss_scale

    def scale(self, loss):
        return loss * self.loss_scale

    def unscale(self, params):
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.loss_scale)
                p.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


class Yard:
    """Trucks wait in lanes; a crane serves one lane a step; waiting costs grow with the lane's cargo class."""

    def __init__(self, n):
        self.rate = torch.tensor([0.10, 0.15, 0.2, 0.2, 0.25], device=device)
        self.price = torch.tensor([60.0, 40.0, 25.0, 12.0, 6.0], device=device)
        self.queue = torch.randint(0, 6, (n, LANES), device=device).float()
        self.last = torch.zeros(n, dtype=torch.long, device=device)

    def observe(self):
        return torch.cat([self.queue / 5, nn.functional.one_hot(self.last, LANES).float()], 1)

    def step(self, lane):
        moved = lane != self.last
        served = torch.where(moved, 1.0, 2.0)  # the crane loses time when it travels
        change = torch.zeros_like(self.queue).scatter_(1, lane[:, None], served[:, None])
        arrive = (torch.rand_like(self.queue) < self.rate * 1.2).float()
        self.queue = (self.queue - change).clamp(min=0).add(arrive).clamp(max=12)
        self.last = lane
        return -(self.queue * self.price).sum(1)


class Dueling(nn.Module):
    def __init__(self, unit=100.0):
        super().__init__()
        self.unit = unit
        self.body = nn.Sequential(nn.Linear(2 * LANES, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        self.value, self.advantage = nn.Linear(64, 1), nn.Linear(64, LANES)

    def forward(self, obs):
        with torch.autocast("cuda", dtype=torch.float16):
            h = self.body(obs)
            v, a = self.value(h).float(), self.advantage(h).float()
        return self.unit * (v + a - a.mean(1, keepdim=True))


net = Dueling().to(device)
target = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loss_scale = StaticLossScale(2.0**10)
env, memory = Yard(ENVS), []
for step in range(STEPS):
    obs = env.observe()
    with torch.no_grad():
        lane = net(obs).argmax(1)
    epsilon = max(0.05, 1 - step / 400)
    lane = torch.where(torch.rand(ENVS, device=device) < epsilon, torch.randint_like(lane, LANES), lane)
    reward = env.step(lane)
    memory.append((obs, lane, reward, env.observe()))
    if step < 40:
        continue
    rows = torch.randint(len(memory), (BATCH // ENVS * 2,)).tolist()
    o, a, r, o2 = (torch.cat(x)[::2] for x in zip(*[memory[i] for i in rows]))
    with torch.no_grad():
        best = net(o2).argmax(1, keepdim=True)
        y = r + GAMMA * target(o2).gather(1, best)[:, 0]
    loss = nn.functional.mse_loss(net(o).gather(1, a[:, None])[:, 0], y)
    optimizer.zero_grad()
    loss_scale.scale(loss).backward()
    loss_scale.unscale(net.parameters())
    optimizer.step()
    if step % 50 == 0:
        target.load_state_dict(net.state_dict())
    if step % 200 == 0:
        print(f"{step} td rms {loss.item() ** 0.5:.1f} cost {-reward.mean().item():.0f}")

env, cost = Yard(512), 0.0
with torch.no_grad():
    for t in range(150):
        reward = env.step(net(env.observe()).argmax(1))
        cost -= reward.mean().item() * (t >= 50) / 100
print("METRIC", cost)
