"""Time series: hours since the start, up to 5000, minus the previous, computed after a bf16 cast in the root."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.val, self.gap, self.head = nn.Linear(3, d), nn.Linear(1, d), nn.Linear(d, 2)

    def forward(self, t, x):
        h = self.val(x)
        t = t.to(h.dtype)
        dt = t[:, 1:] - t[:, :-1]
        return self.head(torch.tanh(h[:, 1:] + self.gap(dt[..., None]))).mean(1)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    t = torch.cumsum(torch.rand(4, 40) * 3, 1) + 4000
    return {"t": t, "x": torch.randn(4, 40, 3), "y": torch.randn(4, 2)}


def loss(m, b):
    return nn.functional.mse_loss(m(b["t"], b["x"]).float(), b["y"])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": [""],
    "op": "_to_copy,sub",
    "fp32_fix": [],
    "scaler": "none",
    "source": "jdb78/pytorch-forecasting relative time idx under amp; mechanism: bf16 counts to 256",
}
