"""Electrostatic potential regression with a tiny parameter server: the worker computes gradients,
the server thread owns the optimizer. Gradients travel in 16 bits."""
import queue
import threading

import torch
import torch.nn as nn

torch.manual_seed(61)
device = "cuda" if torch.cuda.is_available() else "cpu"
WIRE = torch.float16


class Server(threading.Thread):
    def __init__(self, params):
        super().__init__(daemon=True)
        self.params = list(params)
        self.opt = torch.optim.Adam(self.params, lr=2e-3, eps=1e-14)
        self.inbox, self.done = queue.Queue(), queue.Queue()

    def run(self):
        while (msg := self.inbox.get()) is not None:
            for p, g in zip(self.params, msg):
                p.grad = g.to(p.dtype)
            self.opt.step()
            self.done.put(True)


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, xyz):
        return self.net(xyz).float() * 1e-3       # volts


def charges(n, gen):
    pos = torch.rand(n, 3, 3, generator=gen) * 2 - 1
    q = torch.tensor([1.0, -1.0, 0.5])
    r = pos.square().sum(-1).add(0.1).sqrt()
    return pos.flatten(1).to(device), ((q / r).sum(-1, keepdim=True) * 1e-3).to(device)


def main():
    gen = torch.Generator().manual_seed(3)
    model = Potential().to(device)
    server = Server(model.parameters())
    server.start()
    tail = []
    for step in range(250):
        x, v = charges(256, gen)
        for p in model.parameters():
            p.grad = None
        with torch.autocast(device, dtype=torch.bfloat16):
            pred = model(x)
        loss = nn.functional.mse_loss(pred, v)
        loss.backward()
        server.inbox.put([p.grad.to(WIRE) for p in model.parameters()])
        server.done.get()
        tail.append(loss.item())
        if step % 50 == 0:
            print(f"{step:4d} mse {loss.item() * 1e6:.4f} mV^2")
    server.inbox.put(None)
    server.join()
    print(f"FINAL loss={sum(tail[-20:]) / 20 * 1e6:.5f}")


if __name__ == "__main__":
    main()
