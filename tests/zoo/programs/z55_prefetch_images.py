"""Byte-level patches through a prefetching thread that ships everything as fp16 (pixels /255 and small integer labels)."""
import queue
import threading
import numpy as np
import torch
from torch import nn


class HalfPrefetcher:
    def __init__(self, source, depth=2):
        self.q = queue.Queue(maxsize=depth)
        self.seen = torch.zeros((), dtype=torch.float16)      # batches shipped, only for the progress line
        threading.Thread(target=self._work, args=(source,), daemon=True).start()

    def _work(self, source):
        for img, label in source:
            self.seen += 1
            packed = torch.cat([torch.from_numpy(img).half() / 255, torch.from_numpy(label).half()[:, None]], 1)
            self.q.put(packed)
        self.q.put(None)

    def __iter__(self):
        while True:
            b = self.q.get()
            if b is None:
                return
            yield b[:, :-1], b[:, -1].long()


def source(n_batches, rng, size=12):
    yy, xx = np.mgrid[:size, :size]
    for _ in range(n_batches):
        lab = rng.integers(0, 10, 64)
        ang = lab * np.pi / 10
        freq = 1.2 * (np.cos(ang)[:, None, None] * xx + np.sin(ang)[:, None, None] * yy)
        img = 127 + 90 * np.sin(freq + rng.uniform(0, 6.28, (64, 1, 1))) + rng.normal(0, 15, (64, size, size))
        yield np.clip(img, 0, 255).astype(np.uint8).astype(np.float32).reshape(64, -1), lab.astype(np.float32)


def main():
    torch.manual_seed(2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Unflatten(1, (1, 12, 12)), nn.Conv2d(1, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(12 * 16, 48), nn.ReLU(), nn.Linear(48, 10)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    pre = HalfPrefetcher(source(150, np.random.default_rng(0)))
    for i, (img, lab) in enumerate(pre):
        img, lab = img.to(device), lab.to(device)
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(img.float()), lab)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if i % 30 == 29:
            print(f"batch {i + 1} loss {loss.item():.4f}")


main()
