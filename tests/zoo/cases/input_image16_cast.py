"""A 16-bit medical image, 0..65535 with an offset, is cast to half by the encoder before it is normalised."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 8, 3, 2, 1), nn.Linear(8, 4)

    def forward(self, x):
        x = x.to(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype)
        x = (x - 30000) / 20000
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Sequential(nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x):
        return self.head(self.encoder(x))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.rand(3, 1, 16, 16) * 70000, torch.tensor([0, 1, 2])


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["encoder"],
    "op": "_to_copy,to",
    "fp32_fix": ["encoder"],
    "scaler": "none",
    "source": "Project-MONAI/MONAI 16-bit CT under amp",
}
