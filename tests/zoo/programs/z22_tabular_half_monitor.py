"""Tabular classifier with drift monitoring: running feature sums and a sample counter in fp16 that only feed the log."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class DriftMonitor(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("total", torch.zeros(d, dtype=torch.float16))
        self.register_buffer("energy", torch.zeros(d, dtype=torch.float16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.float16))

    @torch.no_grad()
    def forward(self, x):
        self.total += x.sum(0).to(torch.float16)
        self.energy += (x * x).sum(0).to(torch.float16)
        self.seen += len(x)
        return x

    def report(self):
        return f"seen {self.seen.item():.0f} mean {(self.total / self.seen).abs().max().item():.3f} energy {self.energy.max().item():.0f}"


class Net(nn.Module):
    def __init__(self, d=20):
        super().__init__()
        self.monitor = DriftMonitor(d)
        self.bn = nn.BatchNorm1d(d)
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x):
        return self.mlp(self.bn(self.monitor(x)))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(3)
    W = torch.randn(20, 3)
    scale = torch.logspace(-1, 1.3, 20)
    net = Net().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0)
    for i in range(200):
        u = torch.randn(256, 20)
        y = (u @ W + 0.5 * torch.randn(256, 3)).argmax(1).to(device)
        x = (u * scale).to(device)
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if (i + 1) % 50 == 0:
            print(f"{i + 1} loss {loss.item():.4f} | {net.monitor.report()}")


main()
