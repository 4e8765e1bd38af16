"""Small targets for the tests of the bench."""

import torch
from torch import nn

from ampcheck.targets.spec import Target

WIDE, INSIDE, CLASSES = 32, 64, 8


def perceptron(size=None, seed=0, *, factor=1.0, optimizer=None, lr=1e-2):
    """Return a target: two linear layers and a ReLU on separable data; `factor` scales the loss."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size or 16, WIDE, generator=generator)
    y = x[:, :CLASSES].argmax(-1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(WIDE, INSIDE), nn.ReLU(), nn.Linear(INSIDE, CLASSES))

    def loss(model, batch):
        return factor * nn.functional.cross_entropy(model(batch[0]), batch[1])

    def accuracy(model, batch):
        return (model(batch[0]).argmax(-1) == batch[1]).float().mean()

    make = optimizer or (lambda model: torch.optim.Adam(model.parameters(), lr=lr))
    return Target("perceptron", model, [(x, y)], loss, make, metric=accuracy, validation=[(x, y)])
