"""Hungarian matching: cost.cpu().numpy() of a bf16 cost matrix: numpy has no bfloat16."""

import torch
from torch import nn


class Matcher(nn.Module):
    @torch.no_grad()
    def forward(self, logits, boxes, tgt):
        cost = torch.cdist(boxes, tgt, p=1).to(logits.dtype) - logits.softmax(-1).to(logits.dtype)[..., :1]
        return torch.as_tensor(cost.numpy().argmin(0))


class DETR(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.enc, self.cls, self.box, self.matcher = (
            nn.Linear(8, d),
            nn.Linear(d, 4),
            nn.Linear(d, 4),
            Matcher(),
        )

    def forward(self, x):
        h = torch.relu(self.enc(x))
        return self.cls(h), self.box(h).sigmoid()


def model():
    torch.manual_seed(0)
    return DETR()


def batch():
    torch.manual_seed(1)
    return torch.randn(20, 8), torch.rand(5, 4)


def loss(m, b):
    c, x = m(b[0])
    i = m.matcher(c, x, b[1])
    return nn.functional.l1_loss(x[i].float(), b[1]) + nn.functional.cross_entropy(
        c[i].float(), torch.ones(5, dtype=torch.long)
    )


TRUTH = {
    "kind": "dtype-error",
    "dtype": "bfloat16",
    "layers": ["matcher"],
    "op": "",
    "fp32_fix": ["matcher"],
    "scaler": "none",
    "source": "facebookresearch/detr matcher under bf16; pytorch/pytorch#90574 (numpy bfloat16)",
}
