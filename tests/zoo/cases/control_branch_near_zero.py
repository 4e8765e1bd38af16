"""ControlNet: a zero-convolution shortly after its start (1e-6) hands its branch gradients of 1e-9."""

import torch
from torch import nn


class Control(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, d, 3, padding=1), nn.SiLU(), nn.Conv2d(d, d, 3, padding=1), nn.SiLU()
        )
        self.zero = nn.Conv2d(d, d, 1)
        with torch.no_grad():
            self.zero.weight.fill_(0.0).add_(torch.eye(d)[:, :, None, None] * 1e-6)
            self.zero.bias.zero_()

    def forward(self, hint):
        return self.zero(self.encode(hint))


class Net(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.stem, self.control = nn.Conv2d(3, d, 3, padding=1), Control(d)
        self.body = nn.Sequential(nn.GroupNorm(3, d), nn.SiLU(), nn.Conv2d(d, d, 3, padding=1), nn.SiLU())
        self.tail = nn.Sequential(nn.Conv2d(d, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 3, 3, padding=1))

    def forward(self, x, hint):
        hidden = self.stem(x) + self.control(hint)
        return self.tail(hidden + self.body(hidden))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0], batch[1]).float(), batch[2])


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": [
        "control",
        "control.encode",
        "control.encode.0",
        "control.encode.1",
        "control.encode.2",
        "control.encode.3",
    ],
    "op": "",
    "fp32_fix": ["control"],
    "scaler": "needs-scale>=2**11",
    "source": "mechanism: lllyasviel/ControlNet zero convolution just after initialisation",
}
