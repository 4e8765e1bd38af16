"""Prioritised-replay DQN on a small ring world (chain walk with slip)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"

CAP = 4096
N_STATES, N_ACT = 48, 3
BATCH, STEPS, GAMMA = 128, 250, 0.95
ALPHA, BETA = 0.6, 0.4


class SumTree:
    """Flat binary tree; leaves hold priorities, inner nodes hold sums of children."""

    def __init__(self, cap):
        self.cap = cap
        self.depth = cap.bit_length() - 1
        self.nodes = torch.zeros(2 * cap, device=device, dtype=torch.float16)

    def write(self, idx, prio):
        node = idx + self.cap
        delta = prio.to(self.nodes.dtype) - self.nodes[node]
        self.nodes[node] += delta
        for _ in range(self.depth):
            node = node // 2
            self.nodes.index_add_(0, node, delta)

    def total(self):
        return self.nodes[1]

    def sample(self, n):
        u = torch.rand(n, device=device) * self.total().float()
        node = torch.ones(n, dtype=torch.long, device=device)
        for _ in range(self.depth):
            left = node * 2
            lv = self.nodes[left].float()
            right = u >= lv
            u = torch.where(right, u - lv, u)
            node = left + right.long()
        leaf = node - self.cap
        return leaf, self.nodes[node].float() / self.total().float()


def onehot(s):
    return F.one_hot(s, N_STATES).float()


def env_step(s, a):
    slip = (torch.rand(s.shape, device=device) < 0.1).long()
    s2 = (s + (a - 1) * (1 - slip)) % N_STATES
    r = (s2 == 0).float() + 0.2 * (s2 == N_STATES // 2).float()
    return s2, r


q = nn.Sequential(nn.Linear(N_STATES, 96), nn.ReLU(), nn.Linear(96, N_ACT)).to(device)
qt = nn.Sequential(nn.Linear(N_STATES, 96), nn.ReLU(), nn.Linear(96, N_ACT)).to(device)
qt.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=2e-3)

# fill the replay with random play at maximum priority
S = torch.randint(0, N_STATES, (CAP,), device=device)
A = torch.randint(0, N_ACT, (CAP,), device=device)
S2, R = env_step(S, A)
tree = SumTree(CAP)
for k in range(0, CAP, 256):
    idx = torch.arange(k, k + 256, device=device)
    tree.write(idx, torch.ones(256, device=device))

drawn = torch.zeros(CAP, device=device)
for step in range(STEPS):
    idx, p = tree.sample(BATCH)
    idx = torch.unique(idx)
    drawn[idx] += 1
    p = tree.nodes[idx + CAP].float() / tree.total().float()
    w = (CAP * p.clamp_min(1e-6)).pow(-BETA)
    w = w / w.max()
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        qa = q(onehot(S[idx])).gather(1, A[idx, None]).squeeze(1)
        with torch.no_grad():
            best = qt(onehot(S2[idx])).max(1).values
            y = R[idx] + GAMMA * best.float()
        td = y - qa.float()
        loss = (w * F.smooth_l1_loss(qa.float(), y, reduction="none")).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    tree.write(idx, (td.detach().abs() + 1e-3).pow(ALPHA))
    if step % 10 == 0:
        qt.load_state_dict(q.state_dict())
    if step % 50 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.5f} batch {len(idx)} root {tree.total().item():.1f} "
              f"seen {int((drawn > 0).sum())}/{CAP}")

with torch.no_grad():
    v = q(onehot(torch.arange(N_STATES, device=device))).max(1).values
print("value at goal neighbours", [round(x, 3) for x in v[[1, 2, 3, -1, -2]].tolist()])
