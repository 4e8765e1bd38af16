"""Tversky loss after autocast, smooth=1e-8: an empty foreground with half probabilities of zero is 0 / 0."""

import torch
from torch import nn


class Tversky(nn.Module):
    def forward(self, logits, target, smooth=1e-8):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            p = logits.sigmoid().flatten(1)
            t = target.to(p.dtype).flatten(1)
            hit, false, miss = (p * t).sum(1), (p * (1 - t)).sum(1), ((1 - p) * t).sum(1)
            return (1 - (hit + smooth) / (hit + 0.3 * false + 0.7 * miss + smooth)).mean()


class Lesions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = (
            nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.ReLU()),
            nn.Conv2d(8, 1, 1),
        )
        self.criterion = Tversky()

    def forward(self, x):
        return self.head(self.body(x))


def model():
    torch.manual_seed(0)
    net = Lesions()
    with torch.no_grad():  # a network that is sure there is nothing in an empty image
        net.head.weight.copy_(net.head.weight.abs() * 60)
        net.head.bias.fill_(-19.0)
    return net


def batch():
    torch.manual_seed(1)
    image, mask = 2 * torch.rand(4, 1, 12, 12), (torch.rand(4, 1, 12, 12) > 0.7).float()
    image[2:], mask[2:] = 0.0, 0.0
    return image, mask


def loss(model, batch):
    return model.criterion(model(batch[0]), batch[1]).float()


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow"],
    "dtype": "float16",
    "layers": ["criterion"],
    "op": "sigmoid,add,div",
    "fp32_fix": ["criterion"],
    "scaler": "none",
    "source": "ShannonAI/dice_loss_for_NLP#6 (smooth 1e-8); NVIDIA/apex#93 (eps in half)",
}
