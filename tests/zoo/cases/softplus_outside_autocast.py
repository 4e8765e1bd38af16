"""A loss after the autocast block writes softplus as log(1 + exp(x)): exp of a half logit above 11 is inf."""

import torch
from torch import nn


class LogisticLoss(nn.Module):
    def forward(self, logits, target):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            signed = torch.where(target, -logits, logits)
            return torch.log(1 + torch.exp(signed)).float().mean()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
        self.objectness, self.criterion = nn.Conv2d(8, 2, 1), LogisticLoss()

    def forward(self, x):
        return self.objectness(self.body(x))


def model():
    torch.manual_seed(0)
    net = Detector()
    with torch.no_grad():
        net.objectness.weight.mul_(90)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 3, 23, 23), torch.rand(4, 2, 5, 5) > 0.5


def loss(model, batch):
    return model.criterion(model(batch[0]), batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["criterion"],
    "op": "exp",
    "fp32_fix": ["criterion"],
    "scaler": "none",
    "source": "mechanism: exp in float16 outside autocast ends at 11.09; nerfstudio- "
    "project/nerfstudio#104 is a relative",
}
