import math
import torch
import torch.nn.functional as F
from torch import nn


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32))
        self.text = nn.Sequential(nn.EmbeddingBag(200, 64), nn.Linear(64, 32))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, img, tok):
        a, b = F.normalize(self.image(img), dim=-1), F.normalize(self.text(tok), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


def model():
    return CLIP()


def batch():
    return torch.randn(32, 48), torch.randint(0, 200, (32, 6))


def loss(model, batch):
    logits = model(*batch)
    y = torch.arange(len(logits))
    return (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)) / 2
