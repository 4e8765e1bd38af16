"""Distillation at temperature 50 without the factor T^2: the soft gradients are 2 500 times smaller
and vanish.
"""

import torch
from torch import nn


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 500))
        self.teacher = nn.Linear(16, 500).requires_grad_(requires_grad=False)

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        return self.student(x), target


def model():
    torch.manual_seed(0)
    return Distiller()


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 16)


def loss(model, batch, temperature=50.0):
    student, teacher = model(batch)
    log_p = (student / temperature).log_softmax(-1)
    return nn.functional.kl_div(log_p, (teacher / temperature).softmax(-1), reduction="batchmean")


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["", "student", "student.0", "student.1", "student.2"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale>=2**4",
    "source": "mechanism: Hinton et al. 2015, section 2 (gradients of soft targets scale as 1 / T^2)",
}
