"""A graph convolution with a sparse float32 adjacency: torch.sparse.mm is not cast by autocast."""

import torch
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)
        edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]])
        self.edges = edges

    def forward(self, x):
        adjacency = torch.sparse_coo_tensor(self.edges, torch.ones(8), (8, 8), check_invariants=False)
        return torch.sparse.mm(adjacency, self.lin(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.conv, self.head = nn.Linear(5, 16), GraphConv(16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.conv(self.embed(x)).relu())


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 5), torch.randint(3, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["conv"],
    "op": "_sparse_mm,mm,addmm,_sparse_addmm,sparse_mm",
    "fp32_fix": ["conv"],
    "scaler": "none",
    "source": "mechanism: torch.sparse.mm with mixed dtypes under autocast (DGL, PyG)",
}
