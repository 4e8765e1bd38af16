"""One small fault model per site. Each model is trained by a job thread; autocast is per thread,
so the job switches it on itself."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self, d=20, h=64, k=6):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d, h), nn.Linear(h, h)
        self.norm = nn.LayerNorm(h)
        self.out = nn.Linear(h, k)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        h = self.norm(h + F.relu(self.fc2(h)))
        return self.out(h)


class Site:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.centers = torch.randn(18, 20, generator=self.gen)

    def batch(self, n=128):
        c = torch.randint(0, 18, (n,), generator=self.gen)
        x = self.centers[c] + 0.8 * torch.randn(n, 20, generator=self.gen)
        return x.to(device), (c % 6).to(device)


class Job(threading.Thread):
    def __init__(self, net, batches, report):
        super().__init__(daemon=True)
        self.net, self.batches, self.report = net, batches, report
        self.opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device, init_scale=4096.0)

    def run(self):
        with torch.autocast(device, dtype=torch.float16):
            while (b := self.batches.get()) is not None:
                x, y = b
                self.opt.zero_grad(set_to_none=True)
                loss = F.cross_entropy(self.net(x), y)
                self.scaler.scale(loss).backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 5.0 * self.scaler.get_scale())
                self.scaler.step(self.opt)
                self.scaler.update()
                self.report.put(loss.item())


def main():
    torch.manual_seed(29)
    for number in range(2):
        site, net = Site(100 + number), Net().to(device)
        batches, report = queue.Queue(), queue.Queue()
        job = Job(net, batches, report)
        job.start()
        trace = []
        for step in range(120):
            batches.put(site.batch())
            trace.append(report.get())
            if step % 40 == 0:
                print(f"site {number} step {step:3d} loss {trace[-1]:.4f}")
        batches.put(None)
        job.join()
        x, y = site.batch(1000)
        with torch.no_grad():
            acc = (net(x).argmax(1) == y).float().mean().item()
        print(f"FINAL site={number} loss={sum(trace[-15:]) / 15:.4f} acc={acc:.3f}")


main()
