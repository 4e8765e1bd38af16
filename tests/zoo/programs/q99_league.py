"""Value network of a board game, trained by worker threads that read finished games and a thread that serves weights."""
import queue
import threading
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
SQUARES, PIECES, WORKERS, ROUNDS, BATCH = 32, 5, 3, 700, 256


def make_net():
    return nn.Sequential(
        nn.Linear(SQUARES * PIECES, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)
    ).to(dev)


class Games:
    """Positions and results; strength depends on material, place and pairs of neighbouring pieces."""

    def __init__(self):
        self.value = torch.randn(SQUARES, PIECES) * 0.5 + torch.tensor([0.0, 1.0, -1.0, 2.5, -2.5])
        self.pair = torch.randn(PIECES, PIECES) * 0.25
        self.odds = torch.tensor([0.5, 0.2, 0.2, 0.05, 0.05])

    def sample(self, n, generator):
        board = torch.multinomial(self.odds, n * SQUARES, True, generator=generator).view(n, SQUARES)
        score = self.value[torch.arange(SQUARES), board].sum(1) + self.pair[board[:, :-1], board[:, 1:]].sum(1)
        p = torch.sigmoid(0.4 * score)
        won = (torch.rand(n, generator=generator) < p).float()
        return F.one_hot(board, PIECES).flatten(1).float().to(dev), won.to(dev), p.to(dev)


class WeightServer(threading.Thread):
    """Collects one gradient of each worker, takes an Adam step and publishes the new weights."""

    def __init__(self, net, lr):
        super().__init__(daemon=True)
        self.weights = {n: p.detach().to(torch.bfloat16) for n, p in net.named_parameters()}
        self.mean = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
        self.square = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
        self.inbox = [queue.Queue() for _ in range(WORKERS)]
        self.outbox = [queue.Queue() for _ in range(WORKERS)]
        self.lr = lr

    def publish(self):
        snapshot = {n: w.clone() for n, w in self.weights.items()}
        for box in self.outbox:
            box.put(snapshot)

    def run(self):
        self.publish()
        for t in range(1, ROUNDS + 1):
            pushed = [box.get() for box in self.inbox]
            for n, w in self.weights.items():
                g = sum(p[n].float() for p in pushed) / WORKERS
                self.mean[n].lerp_(g, 0.1)
                self.square[n].lerp_(g * g, 0.001)
                m, v = self.mean[n] / (1 - 0.9**t), self.square[n] / (1 - 0.999**t)
                w.sub_(self.lr * (1 - t / ROUNDS) * m / (v.sqrt() + 1e-8))
            self.publish()


def work(rank, server, games, log):
    net = make_net().to(torch.bfloat16)
    generator = torch.Generator()
    generator.manual_seed(100 + rank)
    for t in range(ROUNDS):
        net.load_state_dict(server.outbox[rank].get())
        board, won, _ = games.sample(BATCH, generator)
        loss = F.binary_cross_entropy_with_logits(net(board.to(torch.bfloat16)).squeeze(1).float(), won)
        net.zero_grad()
        loss.backward()
        server.inbox[rank].put({n: p.grad.clone() for n, p in net.named_parameters()})
        log[rank].append(loss.item())


games = Games()
server = WeightServer(make_net(), lr=1e-4)
log = [[] for _ in range(WORKERS)]
threads = [server] + [threading.Thread(target=work, args=(r, server, games, log)) for r in range(WORKERS)]
for th in threads:
    th.start()
for th in threads:
    th.join()
for t in range(0, ROUNDS, 100):
    print(f"round {t} loss {sum(sum(part[t:t + 20]) for part in log) / (20 * WORKERS):.4f}")

net = make_net()
net.load_state_dict(server.weights)
held = torch.Generator()
held.manual_seed(7)
board, won, p = games.sample(8000, held)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    guess = torch.sigmoid(net(board).squeeze(1).float())
print(f"METRIC {(guess - p).abs().mean().item():.4f}")
