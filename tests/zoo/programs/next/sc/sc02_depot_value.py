"""TD evaluation of a maintenance policy for a depot of machines, with a slow target network."""
import copy

import torch
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
STATES, GAMMA, TAU, BATCH, STEPS = 48, 0.8, 0.01, 64, 600


def build_depot():
    """Return transition probabilities and rewards of the wear levels under the present policy."""
    wear = torch.arange(STATES)
    transition = torch.zeros(STATES, STATES)
    repair = torch.sigmoid((wear - 36).float() / 3)
    for level in range(STATES):
        for jump, probability in ((0, 0.3), (1, 0.4), (3, 0.3)):
            transition[level, min(level + jump, STATES - 1)] += probability * (1 - repair[level])
        transition[level, 0] += repair[level]
    reward = 2.0 - 0.02 * wear - 1.5 * repair
    return transition, reward


def features(state):
    """Describe a wear level by smooth bumps along the scale."""
    position = state.float().unsqueeze(1) / STATES
    centres = torch.linspace(0, 1, 16, device=state.device)
    return torch.exp(-((position - centres) ** 2) / 0.01)


class ValueNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, state):
        return self.net(features(state)).squeeze(1)


class TargetValue:
    """Slow copy of the value network that gives the bootstrap."""

    def __init__(self, online, tau):
        self.net = copy.deepcopy(online).to(torch.bfloat16).requires_grad_(False)
        self.tau = tau

    @torch.no_grad()
    def update(self, online):
        for slow, fast in zip(self.net.parameters(), online.parameters()):
            slow.lerp_(fast.to(slow.dtype), self.tau)

    @torch.no_grad()
    def __call__(self, state):
        return self.net(state)


transition, reward = build_depot()
true_value = torch.linalg.solve(torch.eye(STATES) - GAMMA * transition, reward)
transition, reward = transition.to(device), reward.to(device)

value = ValueNet().to(device)
target = TargetValue(value, TAU)
optimizer = torch.optim.Adam(value.parameters(), lr=2e-3)

for step in range(STEPS):
    state = torch.randint(STATES, (BATCH,), device=device)
    after = torch.multinomial(transition[state], 1).squeeze(1)
    observed = reward[state] + 0.1 * torch.randn(BATCH, device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        bootstrap = observed + GAMMA * target(after).float()
        loss = nn.functional.mse_loss(value(state), bootstrap)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    target.update(value)
    if step % 300 == 0:
        print(f"step {step} td error {loss.item():.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    estimate = value(torch.arange(STATES, device=device)).float().cpu()
error = (estimate - true_value).abs().mean() / true_value.abs().mean()
print("metric", round(error.item(), 5))
