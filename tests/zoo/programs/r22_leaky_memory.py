import argparse
import torch
from torch import nn
from torch.nn import functional as F


class SlowMemory(nn.Module):
    """A slow integrator of the input beside a fast cell; the memory is carried over chunks of one long stream."""

    def __init__(self, rate=5e-5):
        super().__init__()
        self.rate = rate

    def forward(self, m, x):
        return m + self.rate * x.to(m.dtype)


class Streamer(nn.Module):
    def __init__(self, i=6, d=32):
        super().__init__()
        self.fx, self.fh = nn.Linear(i, d), nn.Linear(d, d)
        self.mem, self.out = SlowMemory(), nn.Linear(d + i, 1)

    def forward(self, x, h, m):
        ys = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.fx(x[:, t]) + self.fh(h))
            m = self.mem(m, x[:, t])
            ys.append(self.out(torch.cat([h, 400 * (m - 1).float()], -1)))
        return torch.stack(ys, 1).squeeze(-1), h, m


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--chunks", type=int, default=80)
    p.add_argument("--len", type=int, default=25)
    a = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Streamer().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=2e-2)
    scaler = torch.amp.GradScaler(device)
    h = torch.zeros(8, 32, device=device)
    m = torch.ones(8, 6, device=device).half()
    acc = torch.zeros(8)
    bias = torch.linspace(-1, 1, 8)[:, None]
    for c in range(a.chunks):
        x = 0.5 * torch.randn(8, a.len, 6)
        x[..., 0] += bias
        y = acc[:, None] + x[..., 0].cumsum(1) * 1e-3
        acc = y[:, -1]
        with torch.autocast(device, dtype=torch.float16):
            p_, h, m = net(x.to(device), h.detach(), m.detach())
            loss = F.mse_loss(p_.float(), y.to(device))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    print("loss", loss.item(), "memory moved", (m.float() - 1).abs().mean().item())


if __name__ == "__main__":
    main()
