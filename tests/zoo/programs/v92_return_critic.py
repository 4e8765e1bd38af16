"""Value network for a walker: Monte Carlo returns, gradients clipped by one norm over all ranks' shards."""
import torch
from torch import nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SHARDS = 2


class Critic(nn.Module):
    def __init__(self, obs=10, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.value = nn.Linear(width, 1)

    def forward(self, obs):
        return self.value(self.trunk(obs)).squeeze(-1)


def global_clip(params, max_norm):
    params = [p for p in params if p.grad is not None]
    flat = torch.cat([p.grad.reshape(-1) for p in params]).to(torch.float16)
    squares = torch.stack([shard.square().sum() for shard in flat.chunk(SHARDS)])
    norm = squares.sum().sqrt().item()
    factor = min(1.0, max_norm / (norm + 1e-6))
    for p in params:
        p.grad.mul_(factor)
    return norm


def episodes(n):
    obs = torch.randn(n, 10)
    speed = obs[:, 0] + 0.5 * torch.sin(2 * obs[:, 1])
    return obs, 250 + 80 * speed + 20 * torch.randn(n)


def main():
    torch.manual_seed(12)
    critic = Critic().to(device)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
    for step in range(150):
        obs, returns = (v.to(device) for v in episodes(128))
        with torch.autocast("cuda", dtype=torch.float16):
            value = critic(obs)
            loss = F.mse_loss(value, returns)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        global_clip(critic.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 30 == 0:
            print(f"step {step} mse {loss.item():.1f}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        obs, returns = (v.to(device) for v in episodes(1024))
        print(f"metric: {F.l1_loss(critic(obs), returns).item():.3f}")


main()
