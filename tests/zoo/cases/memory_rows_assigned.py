"""Half embeddings are assigned to rows of a float32 memory; autocast promotes index_put, not its in-
place form.
"""

import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.register_buffer("bank", nn.functional.normalize(torch.randn(n, d), dim=1))

    def forward(self, z, rows):
        logits = z @ self.bank.t().clone()
        self.bank[rows] = z.detach()
        return logits


class Instance(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.memory = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 12)), Memory(40, 12)

    def forward(self, x, rows):
        return self.memory(self.net(x), rows)


def model():
    torch.manual_seed(0)
    return Instance()


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 8), torch.randperm(40)[:8]


def loss(model, batch):
    return nn.functional.cross_entropy(model(*batch), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["memory"],
    "op": "index_put,index_put_,_index_put_impl_",
    "fp32_fix": ["memory"],
    "scaler": "none",
    "source": "continue-revolution/sd-webui-animatediff#168; pytorch/pytorch#41036",
}
