# sea surface height from tiles; gradient exchange through a queue as in our two-node setup
import threading
from queue import Queue

import torch
from torch import nn

torch.manual_seed(67)
DEV = "cuda" if torch.cuda.is_available() else "cpu"
EXCHANGE_SCALE = 2.0 ** 20


def compress(grads):
    return [(g.float() * EXCHANGE_SCALE).half() for g in grads]


def decompress(packet):
    return [g.float() / EXCHANGE_SCALE for g in packet]


class Reducer:
    """Averages the packets of the two tiles in a thread of its own and takes the step."""

    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.q, self.ack = Queue(), Queue()
        self.t = threading.Thread(target=self.loop, daemon=True)
        self.t.start()

    def loop(self):
        while True:
            packets = self.q.get()
            if packets is None:
                break
            parts = [decompress(p) for p in packets]
            for p, *gs in zip(self.model.parameters(), *parts):
                p.grad = sum(gs) / len(gs)
            self.opt.step()
            self.ack.put(1)


def tile(n):
    xy = torch.rand(n, 4) * 2 - 1
    h = 1e-3 * (torch.sin(3 * xy[:, :1]) * torch.cos(2 * xy[:, 1:2]) + 0.5 * xy[:, 2:3] * xy[:, 3:])
    return xy.to(DEV), h.to(DEV)


net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(DEV)
opt = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-14)
red = Reducer(net, opt)
seen = []
for step in range(200):
    packets, tot = [], 0.0
    for _ in range(2):
        x, h = tile(128)
        with torch.autocast(DEV, dtype=torch.bfloat16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float() * 1e-3, h)
        packets.append(compress(torch.autograd.grad(loss, list(net.parameters()))))
        tot += loss.item() / 2
    red.q.put(packets)
    red.ack.get()
    seen.append(tot)
    if step % 40 == 0:
        print(f"{step} {tot * 1e6:.4f} mm^2")
red.q.put(None)
red.t.join()
print(f"FINAL loss={sum(seen[-20:]) / 20 * 1e6:.5f}")
