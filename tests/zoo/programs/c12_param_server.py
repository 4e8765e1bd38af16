"""Wine scoring with a parameter server: worker threads keep light copies, send gradients; the server thread updates."""
import argparse
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_rows(n, gen, world):
    x = torch.randn(n, 30, generator=gen)
    h = torch.sin(x @ world["a"])
    y = h @ world["b"] + 0.5 * (x[:, :10] * x[:, 10:20]).mean(1) + 0.1 * torch.randn(n, generator=gen)
    return x.to(device), y.to(device)


def build(width=160):
    return nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


class Server(threading.Thread):
    """Owns the weights and the optimizer; averages one message of each worker per round."""

    def __init__(self, workers, lr, rounds, wire):
        super().__init__(daemon=True)
        self.model = build().to(device)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 1.0, 0.1, rounds)
        self.inbox = [queue.Queue() for _ in range(workers)]
        self.outbox = [queue.Queue() for _ in range(workers)]
        self.rounds, self.wire, self.skipped = rounds, wire, 0

    def publish(self):
        for box in self.outbox:
            box.put([p.detach().to(self.wire) for p in self.model.parameters()])

    def run(self):
        self.publish()
        for _ in range(self.rounds):
            messages = [box.get() for box in self.inbox]
            for p, *gs in zip(self.model.parameters(), *(m["grads"] for m in messages)):
                p.grad = sum(g.float() / m["scale"] for g, m in zip(gs, messages)) / len(messages)
            if all(torch.isfinite(p.grad).all() for p in self.model.parameters()):
                self.opt.step()
            else:
                self.skipped += 1
            self.sched.step()
            self.publish()


class Worker(threading.Thread):
    def __init__(self, index, server, data, batch, seed, scale):
        super().__init__(daemon=True)
        self.index, self.server, self.data, self.batch, self.scale = index, server, data, batch, scale
        self.gen = torch.Generator().manual_seed(seed * 100 + index)
        self.model = build().to(device).to(server.wire)
        self.losses = []

    def run(self):
        x, y = self.data
        for _ in range(self.server.rounds):
            with torch.no_grad():
                for mine, new in zip(self.model.parameters(), self.server.outbox[self.index].get()):
                    mine.copy_(new)
            pick = torch.randint(0, len(x), (self.batch,), generator=self.gen)
            out = self.model(x[pick].to(self.server.wire)).squeeze(1)
            loss = F.mse_loss(out.float(), y[pick])
            self.model.zero_grad(set_to_none=True)
            (loss * self.scale).backward()
            self.losses.append(loss.item())
            self.server.inbox[self.index].put({"grads": [p.grad for p in self.model.parameters()], "scale": self.scale})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scale", type=float, default=512.0)
    args = parser.parse_args()
    wire = torch.float16
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(17)
    world = {"a": torch.randn(30, 12, generator=gen) * 0.25, "b": torch.randn(12, generator=gen) * 0.5}
    train, held = make_rows(24000, gen, world), make_rows(4000, gen, world)

    server = Server(args.workers, 3e-3, args.steps, wire)
    shards = [tuple(t[k::args.workers] for t in train) for k in range(args.workers)]
    workers = [Worker(k, server, shards[k], args.batch, args.seed, args.scale) for k in range(args.workers)]
    for thread in [server, *workers]:
        thread.start()
    for thread in [*workers, server]:
        thread.join()
    for step in range(0, args.steps, 50):
        print(f"round {step:3d} loss " + " ".join(f"{w.losses[step]:.4f}" for w in workers))

    with torch.no_grad():
        light = build().to(device).to(wire)
        light.load_state_dict(server.model.state_dict())
        out = light(held[0].to(wire)).squeeze(1).float()
    mse = F.mse_loss(out, held[1]).item()
    print(f"held-out error {mse:.4f} of variance {held[1].var().item():.4f}")
    return {"mse": mse, "variance": held[1].var().item(), "skipped": server.skipped}


if __name__ == "__main__":
    main()
