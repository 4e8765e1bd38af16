"""Book ratings with side information: shops keep their readers' vectors, a server keeps what all shops share."""

import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(31)

SHOPS, READERS, BOOKS, FACTS, RANK = 4, 100, 200, 10, 8
ROUNDS, LOCAL = 750, 1

facts = torch.randn(BOOKS, FACTS, device=device)
taste = torch.randn(SHOPS, READERS, RANK, device=device) / RANK**0.5
theme = torch.randn(BOOKS, RANK, device=device) + 0.7 * torch.tanh(facts @ torch.randn(FACTS, RANK, device=device))


def sales(shop, count):
    reader = torch.randint(READERS, (count,), device=device)
    book = torch.randint(BOOKS, (count,), device=device)
    rating = (taste[shop][reader] * theme[book]).sum(1) + 0.3 * torch.randn(count, device=device)
    return reader, book, rating


class Catalogue(nn.Module):
    """Vectors of books: one that is learned for each, and one that comes from its facts."""

    def __init__(self):
        super().__init__()
        self.own = nn.Embedding(BOOKS, RANK)
        nn.init.normal_(self.own.weight, std=0.3)
        self.side = nn.Sequential(nn.Linear(FACTS, 32), nn.ReLU(), nn.Linear(32, RANK))

    def forward(self, book):
        return self.own(book) + self.side(facts[book]).float()


class Server:
    def __init__(self, model, dtype=torch.bfloat16):
        self.shared = {name: p.detach().to(dtype) for name, p in model.named_parameters()}
        self.inbox = queue.Queue()

    def pull(self):
        return {name: value.to(torch.bfloat16) for name, value in self.shared.items()}

    def collect(self):
        """Take what all shops have found and move the shared values by each shop's part of it."""
        pushed = sorted((self.inbox.get() for _ in range(SHOPS)), key=lambda one: one[0])
        for _, moved in pushed:
            for name, value in self.shared.items():
                value.add_((moved[name] / SHOPS).to(value.dtype))


class Shop(threading.Thread):
    def __init__(self, number, server):
        super().__init__(daemon=True)
        self.number, self.server, self.orders = number, server, queue.Queue()
        self.model = Catalogue().to(device)
        self.readers = nn.Embedding(READERS, RANK).to(device)
        nn.init.normal_(self.readers.weight, std=0.3)
        self.reader, self.book, self.rating = sales(number, 10000)
        self.dice = torch.Generator().manual_seed(500 + number)
        self.loss = 0.0

    def run(self):
        groups = [{"params": self.model.parameters(), "lr": 0.02}, {"params": self.readers.parameters(), "lr": 0.5}]
        optimizer = torch.optim.SGD(groups)
        while (values := self.orders.get()) is not None:
            start = {name: value.float() for name, value in values.items()}
            self.model.load_state_dict(start)
            for _ in range(LOCAL):
                pick = torch.randint(len(self.reader), (384,), generator=self.dice)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    guess = (self.readers(self.reader[pick]) * self.model(self.book[pick])).sum(1)
                    loss = F.mse_loss(guess, self.rating[pick])
                optimizer.zero_grad(set_to_none=True)
                (20 * loss).backward()
                optimizer.step()
            self.loss = loss.item()
            moved = {name: p.detach() - start[name] for name, p in self.model.named_parameters()}
            self.server.inbox.put((self.number, moved))


server = Server(Catalogue().to(device))
shops = [Shop(number, server) for number in range(SHOPS)]
held_out = [sales(number, 2000) for number in range(SHOPS)]
for shop in shops:
    shop.start()
for turn in range(ROUNDS):
    for shop in shops:
        shop.orders.put(server.pull())
    server.collect()
    if turn % 100 == 99:
        print(f"round {turn} loss {sum(shop.loss for shop in shops) / SHOPS:.4f}")
for shop in shops:
    shop.orders.put(None)
    shop.join()

total = 0.0
for shop, (reader, book, rating) in zip(shops, held_out):
    shop.model.load_state_dict({name: value.float() for name, value in server.shared.items()})
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        guess = (shop.readers(reader) * shop.model(book)).sum(1)
    total += F.mse_loss(guess.float(), rating).item() / SHOPS
print("METRIC", total)
