import random
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(33); random.seed(33)


class Replay:
    """Ring buffer of transitions."""

    def __init__(self, size, obs_dim):
        self.obs = torch.zeros(size, obs_dim, dtype=torch.float16)
        self.nxt = torch.zeros(size, obs_dim, dtype=torch.float16)
        self.rew = torch.zeros(size, dtype=torch.float16)
        self.act = torch.zeros(size, dtype=torch.long)
        self.prio = torch.zeros(size)
        self.size, self.ptr, self.full = size, 0, 0

    def push(self, o, a, r, n):
        k = len(o)
        idx = torch.arange(self.ptr, self.ptr + k) % self.size
        self.obs[idx], self.nxt[idx], self.rew[idx], self.act[idx] = o.half(), n.half(), r.half(), a
        self.prio[idx] = 1.0
        self.ptr = (self.ptr + k) % self.size
        self.full = min(self.full + k, self.size)

    def sample(self, n):
        idx = torch.randint(0, self.full, (n,))
        return idx, self.obs[idx].float(), self.act[idx], self.rew[idx].float(), self.nxt[idx].float(), self.prio[idx]


def world(o, a):
    n = o.clone()
    n[torch.arange(len(o)), a] *= 0.8
    n += 0.05 * torch.randn_like(n)
    return n, 1.0 - n.abs().mean(1)


q = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6)).to(device)
q_target = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6)).to(device)
q_target.load_state_dict(q.state_dict())
opt = torch.optim.RMSprop(q.parameters(), lr=5e-4)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0 ** 12)
memory = Replay(4096, 6)
o = torch.randn(64, 6)
losses = []
for t in range(100):
    a = torch.randint(0, 6, (64,))
    n, r = world(o, a)
    memory.push(o, a, r, n)
    o = n if t % 20 else torch.randn(64, 6)
    idx, bo, ba, br, bn, w = (v.to(device) for v in memory.sample(128))
    with torch.autocast(device.type, dtype=torch.float16):
        pred = q(bo).gather(1, ba[:, None]).squeeze(1)
        with torch.no_grad():
            goal = br + 0.95 * q_target(bn).amax(1)
        loss = (w * nn.functional.smooth_l1_loss(pred, goal.float(), reduction="none")).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if t % 25 == 24:
        q_target.load_state_dict(q.state_dict())
    losses.append(loss.item())
print(losses[0], losses[-1], memory.full)
