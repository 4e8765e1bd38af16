"""Scene flow from LiDAR sweeps. A worker thread prepares batches and ships them in half to save PCIe bandwidth."""
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F


class Prefetcher(threading.Thread):
    def __init__(self, steps, device):
        super().__init__(daemon=True)
        self.steps, self.device, self.q = steps, device, queue.Queue(maxsize=3)
        self.gen = torch.Generator().manual_seed(99)

    def sweep(self, n=128):
        g = self.gen
        origin = torch.tensor([1830.0, 2410.0, 110.0])
        p = origin + torch.rand(n, 3, generator=g) * 40
        kind = torch.randint(0, 2, (n, 1), generator=g).float()
        vel = torch.randn(1, 3, generator=g) * 0.25 * kind + torch.tensor([[0.5, 0.2, 0.0]])
        return p, p + vel, kind, vel

    def run(self):
        for _ in range(self.steps):
            batch = [t.half().to(self.device, non_blocking=True) for t in self.sweep()]
            self.q.put(batch)
        self.q.put(None)

    def __iter__(self):
        self.start()
        while (b := self.q.get()) is not None:
            yield b


class FlowNet(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.motion = nn.Sequential(nn.Linear(3, h), nn.ReLU(), nn.Linear(h, h))
        self.klass = nn.Linear(1, h)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(h, 3))

    def forward(self, p0, p1, kind):
        return self.head(self.motion(p1.float() - p0.float()) + self.klass(kind))


def main():
    torch.manual_seed(3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = FlowNet().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device)
    hist = []
    for p0, p1, kind, vel in Prefetcher(250, device):
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = net(p0, p1, kind)
            loss = F.smooth_l1_loss(out.float(), vel.float(), beta=0.05)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        hist.append((out.float() - vel.float()).norm(dim=1).mean().item())
    print(f"end point error first {hist[0]:.4f} m, last 20 {sum(hist[-20:]) / 20:.4f} m")


main()
