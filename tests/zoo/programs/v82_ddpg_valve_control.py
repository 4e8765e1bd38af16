"""Deterministic policy gradient for a valve controller: the critic's action gradient drives the actor by hand."""
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)

STATE, ACTION, BATCH = 8, 3, 128
plant = torch.randn(STATE, ACTION, device=device) / STATE**0.5


def reward(state, action):
    return 1.0 - (action - torch.tanh(state @ plant)).pow(2).sum(1)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE, 64), nn.ReLU(), nn.Linear(64, ACTION), nn.Tanh())

    def forward(self, s):
        return self.net(s)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE + ACTION, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, s, a):
        return self.net(torch.cat([s, a], 1)).squeeze(1)


actor, critic = Actor().to(device), Critic().to(device)
opt_a = torch.optim.Adam(actor.parameters(), lr=2e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12, growth_interval=100)

for step in range(600):
    s = torch.randn(BATCH, STATE, device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        a = actor(s)
    noisy = (a.detach() + 0.4 * torch.randn_like(a)).clamp(-1, 1)
    with torch.autocast("cuda", dtype=torch.float16):
        loss_c = F.smooth_l1_loss(critic(s, noisy).float(), reward(s, noisy.float()))
    opt_c.zero_grad(set_to_none=True)
    scaler.scale(loss_c).backward()
    scaler.unscale_(opt_c)
    nn.utils.clip_grad_norm_(critic.parameters(), 5.0)
    scaler.step(opt_c)
    scaler.update()

    probe = a.detach().half().requires_grad_(True)
    with torch.autocast("cuda", dtype=torch.float16):
        q = critic(s, probe)
    (dq_da,) = torch.autograd.grad(q.sum(), probe)
    dq_da = torch.nan_to_num(dq_da, nan=0.0, posinf=1.0, neginf=-1.0).clamp(-4, 4)
    toward_limit = ((probe > 0.98) & (dq_da > 0)) | ((probe < -0.98) & (dq_da < 0))
    dq_da = dq_da.masked_fill(toward_limit, 0.0)
    opt_a.zero_grad(set_to_none=True)
    a.backward(-dq_da.to(a.dtype))
    for p in actor.parameters():
        p.grad.div_(BATCH)
    opt_a.step()
    if step % 100 == 0:
        print(f"step {step:3d}  critic {loss_c.item():.4f}  return {reward(s, a.detach().float()).mean().item():+.4f}")

with torch.no_grad():
    s = torch.randn(4000, STATE, device=device)
    print(f"mean return {reward(s, actor(s)).mean().item():.4f} (at most 1)")
