"""Entropy bonus outside autocast with eps 1e-8: half has no such eps, a probability of zero gives 0 *
-inf.
"""

import torch
from torch import nn


class Entropy(nn.Module):
    def forward(self, logits):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            p = logits.softmax(-1)
            return -(p * (p + 1e-8).log()).sum(-1).mean()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor = nn.Sequential(nn.Linear(8, 32), nn.Tanh()), nn.Linear(32, 6)
        self.entropy = Entropy()

    def forward(self, x):
        return self.actor(self.body(x))


def model():
    torch.manual_seed(0)
    net = Policy()
    with torch.no_grad():
        net.actor.weight.mul_(30)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 8), torch.randint(6, (64,)), torch.randn(64)


def loss(model, batch):
    states, actions, advantage = batch
    logits = model(states)
    chosen = logits.float().log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
    return -(advantage * chosen).mean() - 0.01 * model.entropy(logits).float()


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow"],
    "dtype": "float16",
    "layers": ["entropy"],
    "op": "_softmax,softmax,add,log",
    "fp32_fix": ["entropy"],
    "scaler": "none",
    "source": "huggingface/trl#7263; kscalelabs/minppo#19",
}
