"""Style loss: the Gram matrix is summed over all pixels in float16 and only then divided by their number."""

import torch
from torch import nn


class Style(nn.Module):
    def forward(self, features, target):
        flat = features.flatten(2)
        gram = torch.bmm(flat, flat.transpose(1, 2)) / flat[0].numel()
        return (gram - target).abs().mean()


class Stylised(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        )
        self.content, self.style = nn.Conv2d(8, 3, 1), Style()

    def forward(self, image):
        features = self.encoder(image)
        return self.content(features), features


def model():
    torch.manual_seed(0)
    net = Stylised()
    with torch.no_grad():
        net.encoder[2].weight.mul_(200)
    return net


def batch():
    torch.manual_seed(1)
    return torch.rand(2, 3, 64, 64), torch.rand(8, 8)


def loss(model, batch):
    image, features = model(batch[0])
    return (image - batch[0]).pow(2).mean() + 0.1 * model.style(features, batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["style"],
    "op": "bmm",
    "fp32_fix": ["style"],
    "scaler": "none",
    "source": "NVIDIA/apex#402; NVIDIA/apex#973",
}
