"""Two towers run in threads, each thread in its own autocast; an epoch counter kept in half."""
import threading
import torch
from torch import nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, i, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, d))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.float16))
        self.register_buffer("freq", torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float16))

    def forward(self, x):
        return self.net(torch.cat([x, torch.sin(x[:, :1] * self.freq.to(x.dtype))], 1))


def both(a, b, xa, xb, device):
    out = [None, None]

    def work(k, m, x):
        with torch.autocast(device, dtype=torch.float16):
            out[k] = m(x)

    ts = [threading.Thread(target=work, args=z) for z in ((0, a, xa), (1, b, xb))]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    return out


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ta, tb = Tower(12 + 4, 24).to(device), Tower(8 + 4, 24).to(device)
    opt = torch.optim.Adam([*ta.parameters(), *tb.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    wa, wb = torch.randn(6, 12), torch.randn(6, 8)
    for epoch in range(10):
        for t in (ta, tb):
            t.epoch += 1
        for _ in range(8):
            z = torch.randn(48, 6)
            xa = torch.cat([z @ wa, torch.randn(48, 0)], 1)
            xb = z @ wb
            xa, xb = F.pad(xa, (0, 0)).to(device), xb.to(device)
            a, b = both(ta, tb, xa, xb, device)
            with torch.autocast(device, dtype=torch.float16):
                sim = F.normalize(a.float(), dim=1) @ F.normalize(b.float(), dim=1).t()
                loss = F.cross_entropy(sim.float() * 10, torch.arange(48, device=device))
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    print("loss", loss.item(), "epoch", ta.epoch.item())


if __name__ == "__main__":
    main()
