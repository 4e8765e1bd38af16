"""Advantage actor-critic for a grid battery: charge, wait or discharge against an hourly price over twelve hours."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16  # torch.float32 switches mixed precision off
HOURS, ENVS, UPDATES, CAPACITY = 12, 64, 90, 4


class BatteryEnv:
    """Sixty-four batteries at once; the state is hour, price, charge, and the price of the next hour."""

    def __init__(self, n):
        self.n = n

    def reset(self):
        hours = torch.arange(HOURS + 1, device=device)
        phase = torch.rand(self.n, 1, device=device) * 6.28
        self.price = 1.0 + torch.sin(hours * 1.05 + phase) + 0.15 * torch.randn(self.n, HOURS + 1, device=device)
        self.charge = torch.zeros(self.n, device=device)
        self.hour = 0
        return self.observe()

    def observe(self):
        now = self.price[:, self.hour]
        ahead = self.price[:, min(self.hour + 1, HOURS)]
        hour = torch.full((self.n,), self.hour / HOURS, device=device)
        return torch.stack([hour, now - 1.0, ahead - now, self.charge / CAPACITY - 0.5], dim=1)

    def step(self, action):
        change = (self.charge + (1 - action)).clamp(0, CAPACITY) - self.charge
        reward = -change * self.price[:, self.hour]
        self.charge = self.charge + change
        self.hour += 1
        return self.observe(), reward


def mlp(outputs, width=48):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)).to(device)


actor, critic = mlp(3), mlp(1)
opt_actor = torch.optim.Adam(actor.parameters(), lr=4e-3, eps=1e-5)
opt_critic = torch.optim.Adam(critic.parameters(), lr=4e-3, eps=1e-5)
scaler = torch.amp.GradScaler("cuda", enabled=amp_dtype != torch.float32)


@torch.no_grad()
def rollout(env, greedy=False):
    states, actions, rewards = [], [], []
    state = env.reset()
    for _ in range(HOURS):
        with torch.autocast("cuda", dtype=amp_dtype):
            probs = F.softmax(actor(state), dim=1)
        action = probs.argmax(1) if greedy else torch.multinomial(probs, 1).squeeze(1)
        states.append(state), actions.append(action)
        state, reward = env.step(action)
        rewards.append(reward)
    return torch.stack(states), torch.stack(actions), torch.stack(rewards)


env = BatteryEnv(ENVS)
for update in range(UPDATES):
    states, actions, rewards = rollout(env)
    returns = rewards.flip(0).cumsum(0).flip(0).reshape(-1)
    states, actions = states.reshape(-1, 4), actions.reshape(-1)

    opt_actor.zero_grad(set_to_none=True)
    opt_critic.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        value = critic(states).squeeze(-1)
        value_loss = F.mse_loss(value, returns)
        advantage = returns - value.detach().float()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        log_probs = F.log_softmax(actor(states), dim=1)
        chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        policy_loss = -(advantage * chosen).mean() - 0.01 * entropy

    scaler.scale(value_loss).backward()
    scaler.scale(policy_loss).backward()
    scaler.unscale_(opt_critic)
    scaler.unscale_(opt_actor)
    nn.utils.clip_grad_norm_(critic.parameters(), 0.5)
    nn.utils.clip_grad_norm_(actor.parameters(), 0.2)
    scaler.step(opt_critic)
    scaler.step(opt_actor)
    scaler.update()
    if update % 30 == 29:
        print(f"update {update + 1} profit {rewards.sum(0).mean().item():.3f} scale {scaler.get_scale():g}")

_, _, rewards = rollout(BatteryEnv(2048), greedy=True)
print(f"metric {rewards.sum(0).mean().item():.4f}")
