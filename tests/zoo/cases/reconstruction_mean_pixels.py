"""Mean squared error over 200 000 pixels of a nearly trained autoencoder: each pixel's gradient is
below 1e-8.
"""

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU())
        self.decoder = nn.ConvTranspose2d(8, 3, 4, 4)

    def forward(self, x):
        return x.mean((2, 3), keepdim=True) + self.decoder(self.encoder(x))


def model():
    torch.manual_seed(0)
    net = Autoencoder()
    with torch.no_grad():
        net.decoder.weight.mul_(0.01)
        net.decoder.bias.zero_()
    return net


def batch():
    torch.manual_seed(1)
    return 0.5 + 2e-3 * torch.randn(2, 3, 192, 192)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch), batch)


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["", "decoder", "encoder", "encoder.0", "encoder.1"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale>=2**7",
    "source": "mechanism: reduction='mean' over many elements; pytorch/pytorch#26512 (why scaling exists)",
}
