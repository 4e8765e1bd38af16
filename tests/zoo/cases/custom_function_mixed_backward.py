"""A custom autograd function without custom_fwd and custom_bwd: its backward multiplies half by float32."""

import torch
from torch import nn


class MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class Leaky(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(m, n) * n**-0.5)

    def forward(self, x):
        return MatMul.apply(x, self.weight)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), Leaky(16, 16), nn.ReLU(), nn.Linear(16, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 6), torch.randint(3, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["2"],
    "op": "mm,matmul",
    "fp32_fix": ["2"],
    "scaler": "none",
    "source": "gungui98/Pytorch-Depthwise-Conv3d#3; NVlabs/pacnet#27",
}
