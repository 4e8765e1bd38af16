"""An encoder layer of torch's own, in bf16 with key padding."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed, self.head = nn.Embedding(30, d), nn.Linear(d, 4)
        self.layer = nn.TransformerEncoderLayer(d, 4, 48, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, ids, padding):
        return self.head(self.layer(self.embed(ids), src_key_padding_mask=padding)[:, 0])


def model():
    torch.manual_seed(0)
    return Encoder()


def batch():
    torch.manual_seed(1)
    padding = torch.arange(9)[None] >= torch.tensor([9, 7, 5, 4, 9, 8])[:, None]
    return torch.randint(30, (6, 9)), padding, torch.randint(4, (6,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])


TRUTH = {
    "kind": "clean",
    "dtype": "bfloat16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: padding masks in bf16",
}
