"""Which buses of a power grid are overloaded: a graph network with its own loss scaling."""
import torch
from torch import nn

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
BUSES = 60


class LossScale:
    """Doubles after `window` clean steps, halves after an overflow."""

    def __init__(self, start, window, dtype):
        self.value = torch.tensor(start, dtype=dtype, device=device)
        self.window = window
        self.clean = 0

    def apply(self, loss):
        return loss * self.value.float()

    def unscale(self, params):
        inverse = 1.0 / self.value.float()
        finite = True
        for p in params:
            p.grad.mul_(inverse)
            finite = finite and bool(torch.isfinite(p.grad).all())
        return finite

    def adjust(self, finite):
        if finite:
            self.clean += 1
            if self.clean == self.window:
                self.value *= 2
                self.clean = 0
        else:
            self.value *= 0.5
            self.clean = 0


class GridNet(nn.Module):
    def __init__(self, width=32, hops=3):
        super().__init__()
        self.inp = nn.Linear(2, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(hops))
        self.nbr = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(hops))
        self.out = nn.Linear(width, 1)

    def forward(self, x, adj):
        h = torch.relu(self.inp(x))
        for own, nbr in zip(self.own, self.nbr):
            h = h + torch.relu(own(h) + nbr(adj @ h))
        return self.out(h).squeeze(-1)


def build_grid():
    place = torch.rand(BUSES, 2)
    near = torch.cdist(place, place).argsort(1)[:, 1:4]
    adj = torch.zeros(BUSES, BUSES)
    adj.scatter_(1, near, 1.0)
    adj = ((adj + adj.T) > 0).float()
    return (adj / adj.sum(1, keepdim=True)).to(device)


def load_cases(n, adj):
    demand = torch.randn(n, BUSES, device=device)
    line = torch.rand(n, BUSES, device=device)
    one = torch.einsum("ij,bj->bi", adj, demand * line)
    two = torch.einsum("ij,bj->bi", adj, torch.relu(demand + one))
    overload = (demand * 0.5 + two - 0.7 * line > 0.25).float()
    return torch.stack([demand, line], -1), overload


adj = build_grid()
x, y = load_cases(300, adj)
test_x, test_y = load_cases(80, adj)
model = GridNet().to(device)
params = list(model.parameters())
optimizer = torch.optim.Adam(params, lr=2e-3)
scale = LossScale(4096.0, window=10, dtype=torch.float16)

for step in range(160):
    batch = torch.randint(0, len(x), (8,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(x[batch], adj)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y[batch])
    optimizer.zero_grad()
    scale.apply(loss).backward()
    finite = scale.unscale(params)
    if finite:
        optimizer.step()
    scale.adjust(finite)

with torch.no_grad():
    logits = model(test_x, adj)
    nll = nn.functional.binary_cross_entropy_with_logits(logits, test_y).item()
    hit = ((logits > 0) == (test_y > 0.5)).float().mean().item()
print(f"loss scale {scale.value.item():g}, test nll {nll:.3f}")
print(f"metric {hit:.4f}")
