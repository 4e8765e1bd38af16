"""A summed segmentation loss: every activation gradient fits up to 2**15, the weight gradient adds up
8 000 pixels.
"""

import torch
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.stem(x))))


def model():
    torch.manual_seed(0)
    net = Segmenter()
    with torch.no_grad():
        net.head.bias.fill_(3.0)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(2, 1, 64, 64), (torch.rand(2, 1, 64, 64) > 0.9).float()


def loss(model, batch):
    return nn.functional.binary_cross_entropy_with_logits(model(batch[0]), batch[1], reduction="sum")


TRUTH = {
    "kind": "backward-overflow",
    "dtype": "float16",
    "layers": ["head"],
    "op": "convolution_backward",
    "fp32_fix": [],
    "scaler": "needs-scale<=2**3",
    "source": "mechanism: reduction='sum'; facebookresearch/maskrcnn-benchmark#1034 shows the messages",
}
