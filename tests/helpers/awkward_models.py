"""Legal models that are awkward to observe, each with a batch and a loss; every one is small and seeded."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

Loss = Callable[[Any, Any], torch.Tensor]


class Case(NamedTuple):
    model: Any
    batch: Any
    loss: Loss


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    def seeded() -> Case:
        torch.manual_seed(3)
        return build()

    CASES[build.__name__] = seeded
    return seeded


def total(model: Any, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.relu(self.fc1(x)))


@case
def dict_output() -> Case:
    class Model(Net):
        def forward(self, x):
            y = super().forward(x)
            return {"logits": y, "deep": [{"hidden": y * 2}, None, "text"]}

    return Case(
        Model(), torch.randn(4, 8), lambda m, b: m(b)["logits"].sum() + m(b)["deep"][0]["hidden"].sum()
    )


@dataclass
class Out:
    logits: torch.Tensor
    nothing: None = None
    count: int = 3


@case
def dataclass_output() -> Case:
    class Model(Net):
        def forward(self, x):
            return Out(super().forward(x))

    return Case(Model(), torch.randn(4, 8), lambda m, b: m(b).logits.square().mean())


@case
def none_output() -> Case:
    class Silent(nn.Module):
        def forward(self, store):
            store["y"] = store["x"] * 2

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.silent = Silent()

        def forward(self, x):
            store = {"x": self.fc1(x)}
            assert self.silent(store) is None
            return self.fc2(store["y"])

    return Case(Model(), torch.randn(4, 8), total)


@case
def kwargs_only() -> Case:
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, *, hidden, extra=None):
            hidden = self.fc(hidden)
            extra["bias"].add_(1.0)
            return {"y": hidden + extra["bias"]}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, *, x):
            return self.inner(hidden=x, extra={"bias": torch.zeros(8)})["y"]

    return Case(Model(), {"x": torch.randn(4, 8)}, lambda m, b: m(**b).square().mean())


@case
def in_place() -> Case:
    class Model(Net):
        def forward(self, x):
            x.mul_(2.0)
            y = self.fc1(x)
            y[:, :2] = 0.5
            y[0].add_(1.0)
            y.relu_()
            return self.fc2(y)

    return Case(Model(), torch.randn(4, 8), total)


@case
def views() -> Case:
    class Model(Net):
        def forward(self, x):
            y = self.fc1(x).view(2, 2, 8).transpose(0, 1)
            a, b = y.chunk(2)
            z = torch.cat([a[..., ::2], b[..., ::2]], -1).expand(3, -1, -1, -1).permute(3, 1, 0, 2)
            return self.fc2(z.reshape(-1, 8)) + torch.as_strided(y.contiguous(), (8,), (1,))

    return Case(Model(), torch.randn(4, 8), total)


@case
def sparse_embedding() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(50, 8, sparse=True)
            self.fc = nn.Linear(8, 4)

        def forward(self, ids):
            return self.fc(self.emb(ids))

    return Case(Model(), torch.tensor([[1, 2, 2], [7, 1, 0]]), total)


@case
def complex_numbers() -> Case:
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.phase = nn.Parameter(torch.randn(8, dtype=torch.complex64))

        def forward(self, x):
            z = torch.fft.fft(self.fc1(x).float()) * self.phase
            return self.fc2(torch.view_as_real(z.conj().resolve_conj()).sum(-1))

    return Case(Model(), torch.randn(4, 8), total)


@case
def integers_only() -> Case:
    class Bucket(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("edges", torch.arange(5))

        def forward(self, ids):
            return torch.bucketize(ids, self.edges) % 5

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bucket, self.emb = Bucket(), nn.Embedding(6, 8)

        def forward(self, ids):
            return self.emb(self.bucket(ids))

    return Case(Model(), torch.arange(6), total)


@case
def empty_batch() -> Case:
    return Case(Net(), torch.randn(0, 8), lambda m, b: m(b).sum())


@case
def scalars() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-3.0))

        def forward(self, x):
            return self.a * x.mean() + self.b.exp() - torch.tensor(0.5)

    return Case(Model(), torch.randn(4), lambda m, b: m(b) ** 2)


@case
def recurrent() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
            self.gru = nn.GRU(12, 5)
            self.fc = nn.Linear(5, 3)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.fc(self.gru(out)[0])

    return Case(Model(), (torch.randn(3, 5, 8), torch.tensor([5, 3, 1])), lambda m, b: m(*b).square().mean())


@case
def dropout() -> Case:
    return Case(
        nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8)).train(), torch.randn(4, 8), total
    )


@case
def shared_and_tied() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Net()
            self.again = self.first
            self.emb, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.emb.weight
            self.first.parent = [self]

        def forward(self, ids):
            return self.head(self.again(self.first(self.emb(ids))))

    return Case(Model(), torch.arange(6), total)


@case
def threads() -> Case:
    class Model(Net):
        def forward(self, x):
            found = []
            thread = threading.Thread(target=lambda: found.append(self.fc2(x)))
            thread.start()
            thread.join()
            return self.fc1(x) + found[0]

    return Case(Model(), torch.randn(4, 8), total)


@case
def queues_and_rebound_buffers() -> Case:
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))
            self.queue, self.calls, self.memo = [torch.ones(8)], 0, {"last": [torch.zeros(8)]}

        def forward(self, x):
            self.calls += 1
            y = self.fc1(x)
            self.mean = 0.9 * self.mean + 0.1 * y.detach().float().mean(0)
            self.queue.append(self.mean)
            self.memo["last"].append(self.mean)
            return self.fc2(y) + torch.stack(self.queue).sum(0) * self.calls

    return Case(Model(), torch.randn(4, 8), total)
