import torch
from torch import nn


class Inverse(torch.autograd.Function):
    """1 / x, saving the input only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1 / x.float()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (-g.to(x.dtype) / (x * x)).to(x.dtype)


class DepthHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        self.disp = nn.Conv2d(16, 1, 1)
        nn.init.constant_(self.disp.bias, -9.0)

    def forward(self, x):
        disparity = torch.sigmoid(self.disp(self.enc(x)))
        return Inverse.apply(disparity)


def model():
    return DepthHead()


def batch():
    return torch.rand(2, 3, 12, 12), 8000 + 500 * torch.randn(2, 1, 12, 12)


def loss(model, batch):
    x, depth = batch
    return (torch.log(model(x)) - depth.log()).abs().mean()
