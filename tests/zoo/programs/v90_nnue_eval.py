"""A small NNUE-like evaluation for a board game: two accumulators, one dense tail, engine scores as labels."""

import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
SQUARES, PIECES, HIDDEN = 64, 10, 32


class Nnue(nn.Module):
    def __init__(self):
        super().__init__()
        # the table is by far the largest tensor, so it is kept small
        self.accumulator = nn.EmbeddingBag(SQUARES * PIECES, HIDDEN, mode="sum", dtype=torch.bfloat16)
        nn.init.normal_(self.accumulator.weight, std=0.25)
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.tail = nn.Sequential(nn.Linear(2 * HIDDEN, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, mine, theirs):
        a = (self.accumulator(mine) + self.bias).clamp(0, 1)
        b = (self.accumulator(theirs) + self.bias).clamp(0, 1)
        return self.tail(torch.cat([a, b], dim=1)).squeeze(1)


def positions(count, worth, n=12):
    squares = torch.rand(count, SQUARES).argsort(1)[:, :n]
    pieces = torch.randint(0, PIECES, (count, n))
    mine = squares * PIECES + pieces
    theirs = (SQUARES - 1 - squares) * PIECES + (pieces + PIECES // 2) % PIECES
    score = worth[mine].sum(1)
    return mine.to(device), theirs.to(device), torch.sigmoid(score).to(device)


def main():
    torch.manual_seed(11)
    random.seed(11)
    worth = torch.randn(SQUARES * PIECES) * 0.4
    train = positions(8192, worth)
    test = positions(2048, worth)
    net = Nnue().to(device)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
    loss_of = nn.BCEWithLogitsLoss()
    order = list(range(0, 8192, 128))
    for epoch in range(3):
        random.shuffle(order)
        total = 0.0
        for start in order:
            mine, theirs, label = (t[start : start + 128] for t in train)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                score = net(mine, theirs)
                loss = loss_of(score, label)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(order):.4f}")
    for name, p in net.named_parameters():
        moved = (p - before[name]).float().norm() / (before[name].float().norm() + 1e-6)
        print(f"{name}: moved {moved.item():.4f}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        right = (net(*test[:2]) > 0) == (test[2] > 0.5)
    print(f"metric: {right.float().mean().item():.4f}")


if __name__ == "__main__":
    main()
