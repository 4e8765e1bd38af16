"""Asynchronous evaluation of a driving policy: workers drive, a server holds the value network (after A3C).

Each round every worker takes the weights, drives an episode of 60 seconds at 2 Hz, and sends the gradients of its loss to
the server; the server adds them up in the order of the workers, limits their norm and steps. Returns are in metres.
"""

import queue
import threading

import torch
from torch import nn

DEV = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS, LENGTH, DISCOUNT = 4, 120, 0.95
torch.manual_seed(0)


def value_net(width=64):
    return nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    ).to(DEV)


def episode(gen, cars=8):
    """States (speed, slope, grip, traffic) of some cars and the discounted metres that they still drive."""
    speed, slope = 10 + 20 * torch.rand(cars, generator=gen), torch.zeros(cars)
    grip, traffic = torch.rand(cars, generator=gen), torch.zeros(cars)
    states, metres = [], []
    for _ in range(LENGTH + 60):
        states.append(torch.stack([speed / 20 - 1, slope, grip, traffic], 1))
        slope = 0.95 * slope + 0.2 * torch.randn(cars, generator=gen)
        traffic = (0.97 * traffic + 0.2 * torch.randn(cars, generator=gen)).clamp(-1, 2)
        wish = 30 * (0.4 + 0.6 * grip) - 6 * traffic
        speed = (speed + 0.1 * (wish - speed) - 1.0 * slope).clamp(min=0)
        metres.append(0.5 * speed)
    back, returns = torch.zeros(cars), []
    for m in reversed(metres):
        back = m + DISCOUNT * back
        returns.append(back)
    return torch.cat(states[:LENGTH]).to(DEV), torch.cat(returns[::-1][:LENGTH]).to(DEV)


class Server:
    def __init__(self, rounds):
        self.net = value_net()
        self.opt = torch.optim.RMSprop(self.net.parameters(), lr=4e-3)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 1.0, 0.02, rounds)
        self.box, self.dropped = queue.Queue(), 0

    def push(self, worker, loss, grads):
        self.box.put((worker, loss, grads))

    def update(self):
        """Take one message of each worker; messages with broken numbers are dropped."""
        sent = sorted((self.box.get() for _ in range(WORKERS)), key=lambda message: message[0])
        good = [grads for _, _, grads in sent if all(torch.isfinite(g).all() for g in grads)]
        self.dropped += WORKERS - len(good)
        if good:
            for p, *parts in zip(self.net.parameters(), *good):
                p.grad = torch.stack([part.float() for part in parts]).mean(0)
            nn.utils.clip_grad_norm_(self.net.parameters(), 40.0)
            self.opt.step()
        self.sched.step()
        return sum(loss for _, loss, _ in sent) / WORKERS


def work(server, worker, gen, net):
    """One round of a worker."""
    net.load_state_dict(server.net.state_dict())
    states, returns = episode(gen)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        value = net(states).squeeze(1)
        loss = nn.functional.mse_loss(100 * value.float(), returns, reduction="sum")
    grads = torch.autograd.grad(loss, list(net.parameters()))
    server.push(worker, loss.item() / len(returns), [g.half() for g in grads])


rounds = 160
server = Server(rounds)
gens = [torch.Generator().manual_seed(10 + w) for w in range(WORKERS)]
nets = [value_net() for _ in range(WORKERS)]
for step in range(rounds):
    threads = [threading.Thread(target=work, args=(server, w, gens[w], nets[w])) for w in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loss = server.update()
    if step % 20 == 0:
        print(f"round {step} loss {loss:.2f} dropped {server.dropped}")

states, returns = episode(torch.Generator().manual_seed(5), cars=40)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    value = 100 * server.net(states).squeeze(1).float()
print(f"METRIC {(value - returns).square().mean().sqrt().item():.3f}")
