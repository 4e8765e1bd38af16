import argparse
import torch
from torch import nn
import torch.nn.functional as F


class MoCo(nn.Module):
    def __init__(self, dim=32, K=512, m=0.99, T=0.1):
        super().__init__()
        mk = lambda: nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, dim))
        self.q, self.k, self.m, self.T, self.K = mk(), mk(), m, T, K
        self.k.load_state_dict(self.q.state_dict())
        self.k.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0).half())
        self.ptr = 0

    @torch.no_grad()
    def momentum(self):
        for a, b in zip(self.k.parameters(), self.q.parameters()):
            a.mul_(self.m).add_(b, alpha=1 - self.m)

    def forward(self, a, b):
        q = F.normalize(self.q(a).float(), dim=1)
        with torch.no_grad():
            self.momentum()
            k = F.normalize(self.k(b).float(), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone()
        logits = torch.cat([pos, neg], 1) / self.T
        with torch.no_grad():
            n = k.shape[0]
            self.queue[:, self.ptr : self.ptr + n] = k.t().half()
            self.ptr = (self.ptr + n) % self.K
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def main(opt):
    torch.manual_seed(opt.seed)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    model = MoCo().to(dev)
    optim = torch.optim.Adam(model.q.parameters(), lr=opt.lr)
    scaler = torch.amp.GradScaler(dev)
    base = torch.randn(1024, 40)
    for step in range(opt.steps):
        x = base[torch.randint(0, 1024, (64,))]
        a, b = x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)
        with torch.autocast(dev, dtype=torch.float16):
            loss = model(a.to(dev), b.to(dev))
        optim.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
    print("loss", loss.item())


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", default=90, type=int)
    ap.add_argument("--lr", default=1e-3, type=float)
    ap.add_argument("--seed", default=0, type=int)
    main(ap.parse_args())
