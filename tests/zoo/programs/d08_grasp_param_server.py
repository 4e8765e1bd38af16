"""Grasp success prediction for several grippers: worker threads compute gradients, a server owns the weights."""
import argparse
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

FEATURES = 40


class GraspNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.net(x)


class Server:
    """Weights as they go over the wire; gradients of all workers are averaged and applied in rank order."""

    def __init__(self, model, lr, momentum, wire):
        self.lr, self.momentum, self.wire = lr, momentum, wire
        self.weights = {k: v.detach().to(wire).clone() for k, v in model.named_parameters()}
        self.velocity = {k: torch.zeros_like(v, dtype=torch.float32) for k, v in self.weights.items()}

    def pull(self, model):
        with torch.no_grad():
            for k, p in model.named_parameters():
                p.copy_(self.weights[k])

    def apply(self, pushes, lr):
        for k, w in self.weights.items():
            grad = torch.stack([push[k].float() for push in pushes]).mean(0)
            v = self.velocity[k].mul_(self.momentum).add_(grad)
            w.sub_((lr * v).to(w.dtype))


def grasps(n, g, teacher):
    x = torch.randn(n, FEATURES, generator=g)
    h = torch.tanh(x @ teacher[0])
    return x, h @ teacher[1] + 0.02 * torch.randn(n, 3, generator=g)


class Worker(threading.Thread):
    def __init__(self, rank, args, server, teacher, device, dtype):
        super().__init__(daemon=True)
        self.args, self.server, self.teacher, self.device, self.dtype = args, server, teacher, device, dtype
        self.model = GraspNet(args.hidden).to(device)
        self.g = torch.Generator().manual_seed(1000 * (rank + 1) + args.seed)
        self.go, self.done = queue.Queue(), queue.Queue()

    def run(self):
        while self.go.get():
            self.server.pull(self.model)
            x, y = (t.to(self.device) for t in grasps(self.args.batch, self.g, self.teacher))
            with torch.autocast(self.device, dtype=self.dtype):
                loss = F.smooth_l1_loss(self.model(x), y)
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            push = {k: p.grad.to(self.server.wire) for k, p in self.model.named_parameters()}
            self.done.put((loss.item(), push))


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--workers", type=int, default=3)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--hidden", type=int, default=320)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--momentum", type=float, default=0.9)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args(argv)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16

    gt = torch.Generator().manual_seed(3)
    teacher = (torch.randn(FEATURES, 16, generator=gt) / FEATURES ** 0.5 * 1.5, torch.randn(16, 3, generator=gt) / 4)
    model = GraspNet(args.hidden).to(device)
    server = Server(model, args.lr, args.momentum, dtype)
    workers = [Worker(r, args, server, teacher, device, dtype) for r in range(args.workers)]
    for w in workers:
        w.start()
    vx, vy = (t.to(device) for t in grasps(2048, torch.Generator().manual_seed(5), teacher))

    for step in range(args.steps):
        for w in workers:
            w.go.put(True)
        replies = [w.done.get() for w in workers]
        lr = args.lr * min(1.0, (args.steps - step) / (0.5 * args.steps))
        server.apply([push for _, push in replies], lr)
        if step % 50 == 0 or step == args.steps - 1:
            server.pull(model)
            with torch.no_grad(), torch.autocast(device, dtype=dtype):
                held = F.smooth_l1_loss(model(vx), vy).item()
            print(f"step {step:4d}  loss {sum(l for l, _ in replies) / len(replies):.5f}  held-out {held:.5f}")
    for w in workers:
        w.go.put(False)
    return held


if __name__ == "__main__":
    main()
