"""R1 penalty: the inner gradient is that of a mean over pixels, about 1e-8, and no loss scale reaches it."""

import torch
from torch import nn


class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 12, 3, padding=1), nn.SiLU()
        )
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3))) * 1e-4


class Penalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = Score()

    def forward(self, x):
        x = x.requires_grad_()
        score = self.score(x)
        (inner,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score, inner


def model():
    torch.manual_seed(0)
    return Penalty()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 3, 24, 24)


def loss(model, batch):
    _, inner = model(batch)
    return 1e12 * inner.float().square().sum((1, 2, 3)).mean()


TRUTH = {
    "kind": "grad-underflow",
    "alt_kinds": ["precision-loss", "forward-underflow"],
    "dtype": "float16",
    "layers": [
        "",
        "score",
        "score.body",
        "score.body.0",
        "score.body.1",
        "score.body.2",
        "score.body.3",
        "score.head",
    ],
    "op": "",
    "fp32_fix": ["score"],
    "scaler": "none",
    "source": "mechanism: R1 regularisation under AMP (rosinality/stylegan2-pytorch runs it in float32)",
}
