"""Values of a fixed dispatch policy for a lift, by temporal differences with a slowly moving target network."""
import copy

import torch
from torch import nn

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
FLOORS, LOADS, GAMMA, TAU, STEPS, BATCH = 12, 4, 0.6, 0.01, 900, 64
STATES = FLOORS * LOADS


def building():
    """Transition matrix and mean reward of the lift under the policy."""
    move = torch.zeros(STATES, STATES)
    reward = torch.zeros(STATES)
    for floor in range(FLOORS):
        for load in range(LOADS):
            here = floor * LOADS + load
            for step, chance in ((1, 0.45), (-1, 0.35), (0, 0.2)):
                goal = min(max(floor + step, 0), FLOORS - 1)
                for change, weight in ((1, 0.3), (0, 0.4), (-1, 0.3)):
                    after = min(max(load + change, 0), LOADS - 1)
                    move[here, goal * LOADS + after] += chance * weight
            reward[here] = 1.0 - 0.4 * load + (0.5 if floor in (0, FLOORS - 1) else 0.0)
    return move, reward


move, reward = building()
truth = torch.linalg.solve(torch.eye(STATES) - GAMMA * move, reward)


def features(state):
    floor, load = state // LOADS, state % LOADS
    return torch.cat(
        [nn.functional.one_hot(floor, FLOORS), nn.functional.one_hot(load, LOADS)], dim=1
    ).float().to(device)


value = nn.Sequential(
    nn.Linear(FLOORS + LOADS, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1)
).to(device)
# the target is only ever evaluated, so it is held in the dtype it is evaluated in
target = copy.deepcopy(value).to(torch.bfloat16).requires_grad_(False)
optimizer = torch.optim.Adam(value.parameters(), lr=2e-3)


@torch.no_grad()
def follow(target, online):
    for slow, fast in zip(target.parameters(), online.parameters()):
        slow.lerp_(fast.to(slow.dtype), TAU)


for step in range(STEPS):
    state = torch.randint(0, STATES, (BATCH,))
    after = torch.multinomial(move[state], 1).squeeze(1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            bootstrap = target(features(after)).squeeze(1).float()
        estimate = value(features(state)).squeeze(1).float()
    goal = reward[state].to(device) + GAMMA * bootstrap
    loss = nn.functional.mse_loss(estimate, goal)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    follow(target, value)

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    learned = value(features(torch.arange(STATES))).squeeze(1).float().cpu()
print("metric", round((learned - truth).square().mean().sqrt().item(), 4))
