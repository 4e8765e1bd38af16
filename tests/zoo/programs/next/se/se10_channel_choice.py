"""Radio channels chosen by policy gradient with a baseline; one scale for both nets."""
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(33)
device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, CHANNELS, STEPS, BATCH = 10, 6, 260, 256

fading = torch.randn(FEATURES, CHANNELS, device=device) / FEATURES**0.5


def throughput(state):
    """Mbit/s of each channel in a state."""
    return 40 * torch.sigmoid(1.5 * state @ fading)


def states(count):
    return torch.randn(count, FEATURES, device=device)


def mlp(outputs):
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    ).to(device)


class DynamicScale:
    def __init__(self, start=2.0**12, interval=500):
        self.value, self.interval, self.clean, self.skipped = start, interval, 0, 0

    def unscale(self, params):
        for p in params:
            p.grad.div_(self.value)
        return all(bool(torch.isfinite(p.grad).all()) for p in params)

    def update(self, finite):
        self.clean = self.clean + 1 if finite else 0
        if not finite:
            self.value /= 2
            self.skipped += 1
        elif self.clean % self.interval == 0:
            self.value *= 2


actor, critic = mlp(CHANNELS), mlp(1)
actor_opt = torch.optim.Adam(actor.parameters(), lr=2e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-3)
scale = DynamicScale()

for step in range(STEPS):
    state = states(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = actor(state)
        baseline = critic(state).squeeze(-1)
    choice = Categorical(logits=logits.float())
    action = choice.sample()
    reward = throughput(state).gather(1, action[:, None]).squeeze(1)
    reward = (reward + 3 * torch.randn(BATCH, device=device) - 20) / 10
    advantage = (reward - baseline.float()).detach()
    actor_loss = -(choice.log_prob(action) * advantage).mean() - 0.01 * choice.entropy().mean()
    critic_loss = (baseline.float() - reward).pow(2).mean()

    actor_opt.zero_grad()
    critic_opt.zero_grad()
    ((actor_loss + 0.5 * critic_loss) * scale.value).backward()
    actor_ok = scale.unscale(list(actor.parameters()))
    critic_ok = scale.unscale(list(critic.parameters()))
    if actor_ok and critic_ok:
        actor_opt.step()
        critic_opt.step()
    scale.update(actor_ok and critic_ok)
    if step % 50 == 0:
        print(f"step {step} reward {reward.mean().item():.3f} scale {scale.value:.0f}")

print(f"skipped {scale.skipped} of {STEPS} steps")
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    state = states(4096)
    action = actor(state).float().argmax(-1)
rates = throughput(state)
regret = 1 - rates.gather(1, action[:, None]).sum() / rates.max(-1).values.sum()
print(f"metric {regret.item():.4f}")
