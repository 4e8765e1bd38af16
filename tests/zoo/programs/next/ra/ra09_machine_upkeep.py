"""Q-learning of when to service a machine: wear and vibration are seen, the target network is a compact copy."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.bfloat16
GAMMA, BATCH, STEPS, SYNC = 0.9, 128, 240, 15


def draw_state(n):
    wear = torch.rand(n, 1, device=device)
    vibration = wear + 0.05 * torch.randn(n, 1, device=device)
    demand = torch.rand(n, 1, device=device)
    return torch.cat([wear, vibration, demand], dim=1)


def transition(state, action):
    """Action 0 runs the machine, 1 services it. Running earns the demand and may break the machine."""
    wear, demand = state[:, 0], state[:, 2]
    broken = torch.rand_like(wear) < 0.6 * wear**3
    run_reward = 0.4 + 0.6 * demand - 3.0 * broken.float()
    reward = torch.where(action == 0, run_reward, torch.full_like(wear, -0.5))
    worn = (wear + 0.10 + 0.04 * torch.rand_like(wear)).clamp(max=1.0)
    next_wear = torch.where((action == 1) | broken, torch.zeros_like(wear), worn)
    next_state = draw_state(len(wear))
    next_state[:, 1] += next_wear - next_state[:, 0]
    next_state[:, 0] = next_wear
    return reward, next_state


def q_network(width=64):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


online = q_network().to(device)
target = copy.deepcopy(online).to(amp_dtype).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=3e-3)


@torch.no_grad()
def sync_target():
    for t, p in zip(target.parameters(), online.parameters()):
        t.copy_(p)


for step in range(STEPS):
    state = draw_state(BATCH)
    action = torch.randint(0, 2, (BATCH,), device=device)
    reward, next_state = transition(state, action)
    with torch.autocast("cuda", dtype=amp_dtype):
        with torch.no_grad():
            best_next = target(next_state).max(1).values
            goal = reward + GAMMA * best_next.float()
        q = online(state).gather(1, action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q.float(), goal)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 5.0)
    optimizer.step()
    if step % SYNC == SYNC - 1:
        sync_target()
    if step % 80 == 79:
        print(f"step {step + 1} loss {loss.item():.4f} value {best_next.float().mean().item():.3f}")

state, earned = draw_state(2048), 0.0
for _ in range(60):
    with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
        action = online(state).argmax(1)
    reward, state = transition(state, action)
    earned += reward.mean().item() / 60
print(f"metric {earned:.4f}")
