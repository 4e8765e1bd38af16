"""Q-learning of a thermostat with a replay memory in half precision and a moving target network."""
import copy

import torch
from torch import nn

torch.manual_seed(23)
device = "cuda" if torch.cuda.is_available() else "cpu"
ROOMS, ROUNDS, BATCH, CAPACITY, GAMMA, TAU = 32, 700, 128, 16000, 0.9, 0.02
POWER = torch.tensor([0.0, 0.5, 1.0])


class Replay:
    """Observations are standardised before they are stored."""

    def __init__(self):
        half = {"dtype": torch.float16, "device": device}
        self.seen, self.after = torch.zeros(CAPACITY, 3, **half), torch.zeros(CAPACITY, 3, **half)
        self.reward = torch.zeros(CAPACITY, **half)
        self.action = torch.zeros(CAPACITY, dtype=torch.long, device=device)
        self.count = 0

    def push(self, seen, action, reward, after):
        rows = (self.count + torch.arange(len(seen), device=device)) % CAPACITY
        for store, value in ((self.seen, seen), (self.action, action), (self.reward, reward), (self.after, after)):
            store[rows] = value.to(device, store.dtype)
        self.count += len(seen)

    def sample(self, size):
        rows = torch.randint(0, min(self.count, CAPACITY), (size,)).to(device)
        return self.seen[rows].float(), self.action[rows], self.reward[rows].float(), self.after[rows].float()


def observe(inside, outside, wanted):
    return torch.stack([(inside - 20) / 5, (outside - 5) / 8, (wanted - 20) / 2], dim=1)


def heat(inside, outside, action):
    return inside + 0.1 * (outside - inside) + 3.5 * POWER[action] + 0.1 * torch.randn(len(inside))


def reward_of(inside, wanted, action):
    return 1 - 0.4 * (inside - wanted).abs().clamp(max=5) - 0.1 * POWER[action]


def weather(count):
    return 14 + 10 * torch.rand(count), -8 + 24 * torch.rand(count), 18 + 4 * torch.rand(count)


def mlp():
    return nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).to(device)


online = mlp()
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ROUNDS)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
memory = Replay()
inside, outside, wanted = weather(ROOMS)

for round_ in range(ROUNDS):
    seen = observe(inside, outside, wanted)
    action = torch.randint(0, 3, (ROOMS,))
    after = heat(inside, outside, action)
    memory.push(seen, action, reward_of(after, wanted, action), observe(after, outside, wanted))
    inside = after
    if round_ % 10 == 9:
        inside, outside, wanted = weather(ROOMS)

    seen, action, gain, following = memory.sample(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            best = target(following).float().max(dim=1).values
        chosen = online(seen).gather(1, action[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(chosen.float(), gain + GAMMA * best)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters()):
            slow.lerp_(fast, TAU)

inside, outside, wanted = weather(2000)
total = 0.0
for hour in range(30):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        action = online(observe(inside, outside, wanted).to(device)).argmax(dim=1).cpu()
    inside = heat(inside, outside, action)
    total += reward_of(inside, wanted, action).mean().item() / 30
print("metric", round(total, 4))
