"""A custom autograd function with custom_fwd and custom_bwd, for the device it runs on."""

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd


class Gate(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class Projection(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(m, n) * n**-0.5)

    def forward(self, x):
        return Gate.apply(x, self.weight)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), Projection(24, 24), nn.Tanh(), nn.Linear(24, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), torch.randint(3, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: custom_fwd and custom_bwd",
}
