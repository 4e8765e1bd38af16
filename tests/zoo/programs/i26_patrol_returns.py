"""A value network for patrol robots; a worker thread plays episodes and hands over returns-to-go."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
ROBOTS, LENGTH, EPISODES, GAMMA = 64, 2000, 25, 0.9998
BATCH, PER_EPISODE = 256, 10
pay_of_trait = torch.rand(3, device=device)


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, traits, left):
        return self.net(torch.cat([traits, left], dim=-1)).squeeze(-1)


def pay(traits):
    """What a robot earns at each tick, on average."""
    return 0.014 + 0.012 * torch.sigmoid(1.0 * (traits @ pay_of_trait))


def play(generator):
    """One episode of all robots: traits, and the return from each tick on."""
    traits = torch.randn(ROBOTS, 3, generator=generator, device=device)
    noise = torch.randn(LENGTH, ROBOTS, generator=generator, device=device)
    rewards = (pay(traits) + 0.002 * noise).to(torch.float16)
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for tick in reversed(range(LENGTH)):
        running = rewards[tick] + GAMMA * running
        returns[tick] = running
    return traits, returns


def worker(episodes, out):
    generator = torch.Generator(device=device)
    generator.manual_seed(7)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        for _ in range(episodes):
            out.put(play(generator))
    out.put(None)


episodes = queue.Queue(maxsize=4)
thread = threading.Thread(target=worker, args=(EPISODES, episodes))
thread.start()

value = Value().to(device)
optimizer = torch.optim.Adam(value.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPISODES * PER_EPISODE)
scaler = torch.amp.GradScaler("cuda")
SPAN = (1 - GAMMA**LENGTH) / (1 - GAMMA) * 0.02  # the usual size of a return

while (episode := episodes.get()) is not None:
    traits, returns = episode
    for _ in range(PER_EPISODE):
        tick = torch.randint(LENGTH, (BATCH,), device=device)
        robot = torch.randint(ROBOTS, (BATCH,), device=device)
        left = 1 - tick[:, None] / LENGTH
        with torch.autocast("cuda", dtype=torch.float16):
            target = returns[tick, robot].float() / SPAN
            loss = nn.functional.smooth_l1_loss(value(traits[robot], left), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
thread.join()
print(f"last loss {loss.item():.5f}")

with torch.no_grad():
    traits = torch.randn(2048, 3, device=device)
    left = torch.rand(2048, 1, device=device)
    truth = pay(traits) * (1 - GAMMA ** (LENGTH * left[:, 0])) / (1 - GAMMA)
    off = (value(traits, left) * SPAN - truth).square().mean().sqrt()
print(f"final metric: {off.item():.4f}")
