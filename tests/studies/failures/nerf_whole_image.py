"""A radiance field trained in chunks of rays, each chunk's squared error divided by all pixels of the image.

Gradients add up over chunks to the mean over the image, which is right and makes each one tiny. Adam would not mind;
fp16 does: NVlabs/instant-ngp trains in fp16 and scales its loss.
"""

import torch
from torch import nn

RAYS, SAMPLES, OCTAVES = 64, 24, 5
PIXELS = 800 * 800 * 3


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6 * OCTAVES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.density, self.colour = nn.Linear(64, 1), nn.Linear(64, 3)

    def forward(self, points):
        angles = points[..., None] * 2.0 ** torch.arange(OCTAVES)
        features = self.trunk(torch.cat([angles.sin(), angles.cos()], -1).flatten(-2))
        return nn.functional.softplus(self.density(features))[..., 0], self.colour(features).sigmoid()


class Renderer(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = Field()

    def forward(self, origins, directions):
        depths = torch.linspace(0.5, 2.5, SAMPLES)
        density, colour = self.field(origins[:, None] + directions[:, None] * depths[:, None])
        opacity = 1 - torch.exp(-density.float() * (2.0 / SAMPLES))
        before = torch.cumprod(torch.cat([torch.ones(len(opacity), 1), 1 - opacity + 1e-10], -1), -1)[:, :-1]
        return ((opacity * before)[..., None] * colour.float()).sum(1)


def model():
    torch.manual_seed(0)
    return Renderer()


def batch():
    draw = torch.Generator().manual_seed(1)
    chunks = []
    for _ in range(8):
        directions = nn.functional.normalize(torch.randn(RAYS, 3, generator=draw), dim=-1)
        chunks.append((torch.zeros(RAYS, 3), directions, 0.5 + 0.4 * (3 * directions).sin()))
    return chunks


def loss(model, batch):
    origins, directions, pixels = batch
    return ((model(origins, directions) - pixels) ** 2).sum() / PIXELS


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-15)
