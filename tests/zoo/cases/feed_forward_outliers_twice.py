"""Two feed-forward blocks whose hidden outliers overflow, as in T5 of several depths: both have to stay in FP32."""

import torch
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, d, outlier):
        super().__init__()
        self.norm, self.wi, self.wo = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(3 * d, d, bias=False)
        with torch.no_grad():
            self.wo.weight[3] = self.wo.weight[3].abs() * outlier

    def forward(self, x):
        return x + self.wo(torch.relu(self.wi(self.norm(x))))


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed = nn.Embedding(50, d)
        self.layers = nn.ModuleList(FeedForward(d, outlier) for outlier in (1.0, 9e4, 1.0, 9e4))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 6)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randint(50, (6, 10)), torch.randint(6, (6,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["layers.1.wo"],
    "op": "mm,linear",
    "fp32_fix": ["layers.1.wo", "layers.3.wo"],
    "scaler": "none",
    "source": "huggingface/transformers#4586 (T5 in fp16), two layers",
}
