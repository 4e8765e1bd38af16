"""An RL critic regresses raw returns of some thousands: the error itself is the gradient, times the scale."""

import torch
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return self.actor(h), self.critic(h)


def model():
    torch.manual_seed(0)
    return ActorCritic()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), torch.randint(4, (32,)), 2000 + 500 * torch.randn(32, 1)


def loss(model, batch):
    states, actions, returns = batch
    logits, values = model(states)
    return nn.functional.cross_entropy(logits, actions) + 0.5 * nn.functional.mse_loss(values, returns)


TRUTH = {
    "kind": "backward-overflow",
    "dtype": "float16",
    "layers": ["", "critic"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale<=2**5",
    "source": "mechanism: unnormalised regression targets; microsoft/DeepSpeed#931 and "
    "NVIDIA/apex#864 ask about the skips",
}
