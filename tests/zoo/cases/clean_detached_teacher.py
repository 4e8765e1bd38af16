"""Self-distillation against a detached teacher of the same shape."""

import torch
from torch import nn


class SelfDistilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 8))
        self.teacher = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.student(x), self.teacher(x).detach()


def model():
    torch.manual_seed(0)
    return SelfDistilled()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10)


def loss(model, batch):
    student, teacher = model(batch)
    return -((4 * teacher.float()).softmax(-1) * student.float().log_softmax(-1)).sum(-1).mean()


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: detached teacher",
}
