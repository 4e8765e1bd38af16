"""Prioritised replay on a 64 x 64 maze with a learned embedding per cell; 1024 walkers fill the memory."""
import torch
from torch import nn

SIDE, MOVES, WALKERS = 64, 4, 1024
GAMMA, ALPHA, BETA = 0.9, 0.6, 0.4
STEPS, BATCH, CAP = 240, 512, 1 << 18

device = "cuda" if torch.cuda.is_available() else "cpu"


class PrioritizedReplay:
    """All transitions on the device, in compact types."""

    def __init__(self, cap):
        self.cap = cap
        self.state = torch.zeros(cap, dtype=torch.int16, device=device)
        self.next = torch.zeros(cap, dtype=torch.int16, device=device)
        self.move = torch.zeros(cap, dtype=torch.int8, device=device)
        self.reward = torch.zeros(cap, dtype=torch.float16, device=device)
        self.prio = torch.zeros(cap, dtype=torch.float16, device=device)
        self.size = 0

    def extend(self, s, a, r, s2):
        lo, hi = self.size, min(self.size + len(s), self.cap)
        n = hi - lo
        self.state[lo:hi], self.next[lo:hi] = s[:n].short(), s2[:n].short()
        self.move[lo:hi], self.reward[lo:hi] = a[:n].to(torch.int8), r[:n].to(self.reward.dtype)
        self.prio[lo:hi] = self.prio[:lo].max() if lo else 1.0         # new ones are seen soon
        self.size = hi

    def sample(self, n):
        p = self.prio[: self.size]
        cdf = p.cumsum(0)
        u = torch.rand(n, device=device) * cdf[-1]
        idx = torch.searchsorted(cdf.float(), u).clamp(max=self.size - 1)
        w = p[idx].float() ** -BETA
        return idx, w / w.max()

    def batch(self, idx):
        return self.state[idx].long(), self.move[idx].long(), self.reward[idx].float(), self.next[idx].long()

    def set_priority(self, idx, td):
        self.prio[idx] = ((td.abs() + 1e-2) ** ALPHA).to(self.prio.dtype)


class CellQ(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.cell = nn.Embedding(SIDE * SIDE, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 128), nn.SiLU(), nn.Linear(128, MOVES))

    def forward(self, s):
        return self.mlp(self.cell(s))


def build_maze(gen):
    gold = torch.rand(SIDE * SIDE, generator=gen) * 2 - 1            # what a cell pays on leaving it
    delta = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    yx = torch.stack([torch.arange(SIDE * SIDE) // SIDE, torch.arange(SIDE * SIDE) % SIDE], 1)
    nxt = (yx[:, None] + delta).clamp(0, SIDE - 1)
    nxt = nxt[..., 0] * SIDE + nxt[..., 1]
    return gold.to(device), nxt.to(device)


def exact_q(gold, nxt, sweeps=200):
    q = torch.zeros(SIDE * SIDE, MOVES, device=device)
    for _ in range(sweeps):
        q = gold[:, None] + GAMMA * q.max(1).values[nxt]
    return q


def main(seed=3):
    torch.manual_seed(seed)
    gold, nxt = build_maze(torch.Generator().manual_seed(seed))
    truth = exact_q(gold, nxt)
    net, frozen = CellQ().to(device), CellQ().to(device)
    frozen.load_state_dict(net.state_dict())
    opt = torch.optim.Adam([{"params": net.cell.parameters(), "lr": 3e-2}, {"params": net.mlp.parameters(), "lr": 2e-3}])
    scaler = torch.amp.GradScaler(device)
    replay, every = PrioritizedReplay(CAP), torch.arange(SIDE * SIDE, device=device)
    here = torch.randint(0, SIDE * SIDE, (WALKERS,), device=device)
    for step in range(STEPS):
        move = torch.randint(0, MOVES, (WALKERS,), device=device)
        there = nxt[here, move]
        replay.extend(here, move, gold[here], there)
        here = there
        idx, w = replay.sample(BATCH)
        bs, ba, br, bn = replay.batch(idx)
        with torch.autocast(device, dtype=torch.float16):
            q = net(bs).gather(1, ba[:, None]).squeeze(1)
            with torch.no_grad():
                tgt = br + GAMMA * frozen(bn).float().max(1).values
        td = tgt - q.float()
        loss = (w * td.square()).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        replay.set_priority(idx, td.detach())
        if step % 15 == 14:
            frozen.load_state_dict(net.state_dict())
        if step % 40 == 0 or step == STEPS - 1:
            with torch.no_grad():
                err = (net(every) - truth).square().mean().sqrt().item()
            print(f"step {step:3d}  memory {replay.size:6d}  loss {loss.item():.4f}  rmse to exact Q {err:.3f}")
    return net, replay, err


if __name__ == "__main__":
    main()
