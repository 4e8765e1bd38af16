"""A state-space scan whose decays are cast to bf16: everything above 0.998 becomes 1 and the state
never forgets.
"""

import torch
from torch import nn


class Scan(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.log_rate = nn.Parameter(torch.linspace(-7.5, -6.5, d))

    def forward(self, x):
        decay = torch.exp(-torch.exp(self.log_rate)).to(x.dtype)
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = decay * state + (x[:, step] if step < 4 else 0)
            states.append(state)
        return torch.stack(states[-1:], 1)


class Ssm(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.inputs, self.scan, self.out = nn.Linear(3, d), Scan(d), nn.Linear(d, 4)

    def forward(self, x):
        return self.out(self.scan(self.inputs(x))[:, -1])


def model():
    torch.manual_seed(0)
    return Ssm()


def batch():
    torch.manual_seed(1)
    return 2 * torch.randn(8, 300, 3), torch.randint(4, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["scan"],
    "op": "_to_copy,mul",
    "fp32_fix": ["scan"],
    "scaler": "none",
    "source": "osaurus-ai/vmlx-swift#433; vllm-project/vllm#13466",
}
