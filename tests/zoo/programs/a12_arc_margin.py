# ArcFace on a few identities, fine-tuning: features already point at their class
import torch
import torch.nn.functional as F
from torch import nn


class ArcNet(nn.Module):
    def __init__(self, d=16, k=8):
        super().__init__()
        self.embed = nn.Linear(k, d, bias=False)
        self.centre = nn.Parameter(torch.empty(k, d))
        with torch.no_grad():
            self.centre.copy_(self.embed.weight.t() + 2e-3 * torch.randn(k, d))

    def forward(self, x, y, margin=0.3, s=16.0):
        cos = F.linear(F.normalize(self.embed(x)), F.normalize(self.centre)).clamp(-1, 1)
        theta = torch.acos(cos)
        hot = F.one_hot(y, cos.shape[1])
        return s * torch.cos(theta + margin * hot)


def model():
    return ArcNet()


def batch():
    y = torch.arange(64) % 8
    return F.one_hot(y, 8).float() + 0.002 * torch.randn(64, 8), y


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x, y), y)
