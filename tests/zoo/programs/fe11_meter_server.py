import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS, ROUNDS, SCALE = 3, 100, 2.0**10


def make_net():
    return nn.Sequential(
        nn.Linear(48, 80), nn.GELU(), nn.Linear(80, 80), nn.GELU(), nn.Linear(80, 12)
    ).to(device)


def make_meter(n, shape):
    """Two days of half-scaled readings, the next twelve hours are wanted."""
    t = torch.arange(60) / 24
    phase, size = torch.rand(n, 1), 0.5 + torch.rand(n, 1)
    load = size * (torch.sin(6.2832 * (t + phase)) + shape * torch.sin(12.5664 * (t + phase)))
    load = load + 0.1 * torch.randn(n, 60)
    return load[:, :48].to(device), load[:, 48:].to(device)


class Server:
    """Keeps the FP32 weights; what comes over the wire are scaled gradients in half."""

    def __init__(self, lr):
        self.net = make_net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.skipped = 0

    def weights(self):
        return {k: v.detach().clone() for k, v in self.net.state_dict().items()}

    def apply(self, packets):
        for number, p in enumerate(self.net.parameters()):
            p.grad = sum(packet[number].float() for packet in packets) / (SCALE * len(packets))
        if not all(torch.isfinite(p.grad).all() for p in self.net.parameters()):
            self.skipped += 1
            return
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()


class Worker(threading.Thread):
    def __init__(self, number, data, inbox, outbox):
        super().__init__(daemon=True)
        self.number, self.data, self.inbox, self.outbox = number, data, inbox, outbox
        self.net = make_net()
        self.generator = torch.Generator()
        self.generator.manual_seed(100 + number)

    def run(self):
        x, y = self.data
        while (weights := self.inbox.get()) is not None:
            self.net.load_state_dict(weights)
            pick = torch.randint(0, len(x), (64,), generator=self.generator)
            with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
                loss = F.mse_loss(self.net(x[pick]), y[pick])
            self.net.zero_grad()
            (loss * SCALE).backward()
            packet = [p.grad.to(torch.float16) for p in self.net.parameters()]
            self.outbox.put((self.number, packet, loss.item()))


def main():
    server, outbox = Server(lr=3e-3), queue.Queue()
    inboxes = [queue.Queue() for _ in range(WORKERS)]
    shapes = 0.2 + 0.6 * torch.rand(WORKERS)
    workers = [Worker(i, make_meter(600, shapes[i]), inboxes[i], outbox) for i in range(WORKERS)]
    for worker in workers:
        worker.start()
    for step in range(ROUNDS):
        for inbox in inboxes:
            inbox.put(server.weights())
        replies = sorted((outbox.get() for _ in workers), key=lambda reply: reply[0])
        server.apply([packet for _, packet, _ in replies])
        if step % 20 == 0:
            print(f"round {step}  loss {sum(r[2] for r in replies) / WORKERS:.4f}  skipped {server.skipped}")
    for inbox in inboxes:
        inbox.put(None)
    for worker in workers:
        worker.join()

    x, y = make_meter(1000, shapes.mean())
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        print("metric", round(F.mse_loss(server.net(x).float(), y).item(), 4))


main()
