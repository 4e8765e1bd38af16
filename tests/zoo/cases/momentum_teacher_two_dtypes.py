"""A momentum teacher in bf16 with decay 0.9995: its weights never follow."""

import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 4))
        self.teacher = (
            nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 4)).bfloat16().requires_grad_(False)
        )
        self.teacher.load_state_dict(self.student.state_dict())

    def forward(self, x):
        return self.student(x)


def model():
    torch.manual_seed(0)
    return Pair()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), torch.randint(4, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def optimizer(model):
    return torch.optim.AdamW(model.student.parameters(), lr=1e-3)


def after_step(model):
    with torch.no_grad():
        for mine, theirs in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            mine.mul_(0.9995).add_(theirs.to(mine.dtype), alpha=0.0005)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "bfloat16",
    "layers": ["teacher", "teacher.0", "teacher.2"],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mechanism: momentum encoders (MoCo, DINO) cast with the model",
}
