# Message passing on small molecular graphs, data parallel over threads.
# A server owns the fp32 weights and the optimizer; each worker pulls a bf16 copy, computes the gradient of its shard
# and sends it back in bf16. A round ends when all have answered.
import copy
import queue
import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

ATOMS, TYPES, WIDTH = 9, 5, 40
WORKERS, SHARD, ROUNDS = 3, 32, 150


def molecules(n):
    """Random trees with a few rings: atom types, adjacency, and a solvation energy."""
    rule = torch.Generator().manual_seed(4)
    polarity = torch.randn(TYPES, generator=rule)
    bond = torch.randn(TYPES, TYPES, generator=rule) * 0.5
    bond = bond + bond.T
    types = torch.randint(0, TYPES, (n, ATOMS))
    adjacency = torch.zeros(n, ATOMS, ATOMS)
    rows = torch.arange(n)
    for atom in range(1, ATOMS):
        parent = (torch.rand(n) * atom).long()
        adjacency[rows, atom, parent] = adjacency[rows, parent, atom] = 1.0
    ring = torch.rand(n) < 0.4
    adjacency[ring, 0, ATOMS - 1] = adjacency[ring, ATOMS - 1, 0] = 1.0
    charge = polarity[types]
    near = (adjacency @ charge[:, :, None]).squeeze(2)
    pairs = (bond[types[:, :, None], types[:, None, :]] * adjacency).sum((1, 2)) / 2
    energy = (torch.tanh(charge + 0.5 * near) * charge).sum(1) + 0.7 * pairs
    return types, adjacency, energy


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own = nn.Linear(width, width)
        self.other = nn.Linear(width, width, bias=False)

    def forward(self, h, adjacency):
        return h + nn.functional.silu(self.own(h) + adjacency @ self.other(h) / 2.0)


class Solvation(nn.Module):
    def __init__(self):
        super().__init__()
        self.types = nn.Embedding(TYPES, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(2)])
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def forward(self, types, adjacency):
        h = self.types(types)
        adjacency = adjacency.to(h.dtype)
        for layer in self.layers:
            h = layer(h, adjacency)
        return self.head(h).squeeze(-1).float().sum(1)


class Worker(threading.Thread):
    def __init__(self, number, net, inbox, outbox):
        super().__init__(daemon=True)
        self.number, self.inbox, self.outbox = number, inbox, outbox
        self.net = copy.deepcopy(net).bfloat16()

    def run(self):
        while True:
            work = self.inbox.get()
            if work is None:
                return
            weights, (types, adjacency, target) = work
            with torch.no_grad():
                for mine, theirs in zip(self.net.parameters(), weights):
                    mine.copy_(theirs)
            self.net.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(self.net(types, adjacency), target)
            loss.backward()
            self.outbox.put((self.number, loss.item(), [p.grad.to(torch.bfloat16) for p in self.net.parameters()]))


class Server:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=5e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, ROUNDS, eta_min=1e-4)
        self.answers = queue.Queue()
        self.inboxes = [queue.Queue() for _ in range(WORKERS)]
        for number, inbox in enumerate(self.inboxes):
            Worker(number, net, inbox, self.answers).start()

    def round(self, shards):
        weights = [p.detach().clone() for p in self.net.parameters()]
        for inbox, shard in zip(self.inboxes, shards):
            inbox.put((weights, shard))
        answers = sorted((self.answers.get() for _ in shards), key=lambda answer: answer[0])
        for index, p in enumerate(self.net.parameters()):
            p.grad = torch.stack([grads[index].float() for _, _, grads in answers]).mean(0)
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.opt.step()
        self.sched.step()
        return sum(loss for _, loss, _ in answers) / len(answers)

    def close(self):
        for inbox in self.inboxes:
            inbox.put(None)


def main():
    torch.manual_seed(55)
    train = [t.to(device) for t in molecules(6000)]
    test = [t.to(device) for t in molecules(800)]
    server = Server(Solvation().to(device))
    for number in range(ROUNDS):
        rows = torch.randint(0, 6000, (WORKERS, SHARD), device=device)
        loss = server.round([[t[r] for t in train] for r in rows])
        if number % 30 == 0:
            print(f"round {number:3d}  mse {loss:.4f}")
    server.close()
    with torch.no_grad():
        rmse = (server.net(*test[:2]) - test[2]).square().mean().sqrt().item()
    print(f"final metric: {rmse:.5f}")


if __name__ == "__main__":
    main()
