import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(14)

CAPACITY, N_SITES, N_ACT, GAMMA = 4096, 4, 4, 0.6
ALPHA, BETA, EPS = 0.6, 0.5, 0.01


class SumTree:
    def __init__(self, capacity, dtype=torch.float16):
        self.capacity = capacity
        self.nodes = torch.zeros(2 * capacity - 1, dtype=dtype, device=device)
        self.cursor = 0

    @property
    def total(self):
        return self.nodes[0].float()

    def set(self, slots, priority):
        slots, first = slots.unique(return_inverse=True)
        fresh = torch.zeros(slots.numel(), device=device).scatter_(0, first, priority)
        node = slots + self.capacity - 1
        change = fresh.to(self.nodes.dtype) - self.nodes[node]
        self.nodes[node] += change
        while node[0] > 0:
            node = (node - 1) // 2
            self.nodes.index_add_(0, node, change)

    def append(self, n, priority):
        slots = torch.arange(self.cursor, self.cursor + n, device=device) % self.capacity
        self.cursor = (self.cursor + n) % self.capacity
        self.set(slots, torch.full((n,), priority, device=device))

    def sample(self, n):
        mass = (torch.arange(n, device=device) + torch.rand(n, device=device)) / n * self.total
        node = torch.zeros(n, dtype=torch.long, device=device)
        while node[0] < self.capacity - 1:
            left = 2 * node + 1
            below = self.nodes[left].float()
            go_left = mass < below
            mass = torch.where(go_left, mass, mass - below)
            node = torch.where(go_left, left, left + 1)
        return node - self.capacity + 1, self.nodes[node].float()


codes = torch.randn(N_SITES, 10, N_ACT)


def read_log(site, n):
    obs = torch.randn(n, 10)
    act = torch.randint(0, N_ACT, (n,))
    rew = (obs @ codes[site]).tanh().gather(1, act[:, None]).squeeze(1) + 0.05 * torch.randn(n)
    tag = F.one_hot(torch.full((n,), site), N_SITES).float()
    nxt = torch.randn(n, 10)
    return torch.cat([obs, tag], 1), act, rew, torch.cat([nxt, tag], 1)


logs = [read_log(s, CAPACITY // N_SITES) for s in range(N_SITES)]
obs, act, rew, nxt = (torch.cat([l[i] for l in logs]).to(device) for i in range(4))
tree = SumTree(CAPACITY)
for _ in range(CAPACITY // 64):
    tree.append(64, 1.0)

q_net = nn.Sequential(nn.Linear(14, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, N_ACT)).to(device)
target = nn.Sequential(nn.Linear(14, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, N_ACT)).to(device)
target.load_state_dict(q_net.state_dict())
opt = torch.optim.Adam(q_net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda")

test = [[t.to(device) for t in read_log(s, 400)] for s in range(N_SITES)]


def greedy_quality():
    marks = []
    with torch.no_grad():
        for s, (o, *_) in enumerate(test):
            best = (o[:, :10] @ codes[s].to(device)).argmax(1)
            marks.append((q_net(o).argmax(1) == best).float().mean().item())
    return marks


for step in range(200):
    idx, prio = tree.sample(128)
    w = (prio / tree.total * CAPACITY).clamp_min(1e-3).pow(-BETA)
    w = w / w.max()
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            goal = rew[idx] + GAMMA * target(nxt[idx]).float().max(1).values
        td = q_net(obs[idx]).float().gather(1, act[idx, None]).squeeze(1) - goal
        loss = (w * F.huber_loss(td, torch.zeros_like(td), reduction="none")).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    tree.set(idx, (td.detach().abs() + EPS).pow(ALPHA))
    if step % 20 == 0:
        target.load_state_dict(q_net.state_dict())
    if step % 40 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f} greedy {sum(greedy_quality()) / N_SITES:.3f}")
print("by site", " ".join(f"{m:.3f}" for m in greedy_quality()))
