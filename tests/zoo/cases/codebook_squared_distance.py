"""Vector quantisation with |x|^2 - 2 x.c + |c|^2 written out: the square of a latent of 300 is beyond
float16.
"""

import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(n, d) * 300)

    def forward(self, x):
        distance = (x * x).sum(-1, keepdim=True) - 2 * (x @ self.codes.t()) + (self.codes**2).sum(-1)
        return (-1e-5 * distance).softmax(-1) @ self.codes


class Autoencoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, d))
        self.quantizer, self.decoder = Quantizer(24, d), nn.Linear(d, 10)

    def forward(self, x):
        return self.decoder(self.quantizer(self.encoder(x)) / 300)


def model():
    torch.manual_seed(0)
    net = Autoencoder()
    with torch.no_grad():
        net.encoder[2].weight.mul_(1500)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch), batch)


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["quantizer"],
    "op": "mul",
    "fp32_fix": ["quantizer"],
    "scaler": "none",
    "source": "mechanism: squared distances by the expanded square; compare lucidrains/vector- "
    "quantize-pytorch#144",
}
