"""Meta-learned start for fitting 2-D soil moisture maps: every field is fitted densely in a few inner steps."""
import torch
from torch import nn
from torch.func import functional_call

device = "cuda" if torch.cuda.is_available() else "cpu"
GRID, INNER, TASKS, UP = 24, 3, 2, 512.0
axis = torch.linspace(-1, 1, GRID)
COORD = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
FEATS = torch.cat([COORD] + [f(k * COORD @ torch.tensor([[1.0, 0.6], [-0.6, 1.0]])) for k in (1.5, 3.0) for f in (torch.sin, torch.cos)], 1).to(device)


def field(gen):
    c = torch.rand(3, 2, generator=gen) * 1.4 - 0.7
    h = 0.5 + 0.6 * torch.rand(3, generator=gen)
    d = (COORD[:, None] - c).square().sum(-1)
    level = 0.2 + 0.3 * torch.rand(1, generator=gen)
    return (level + (h * torch.exp(-d / 0.2)).sum(1, keepdim=True)).to(device)


class MapNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.a = nn.Linear(FEATS.shape[1], width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, 1, bias=False)
        for lin in (self.a, self.b, self.c):
            nn.init.xavier_normal_(lin.weight)

    def forward(self, f):
        h = torch.tanh(self.a(f))
        return self.c(torch.tanh(self.b(h)))


def fit_loss(net, params, y):
    with torch.autocast(device, dtype=torch.float16):
        out = functional_call(net, params, (FEATS,))
    return (out.float() - y).square().mean()


def inner_fit(net, y, lr, create_graph=True):
    params = dict(net.named_parameters())
    first = None
    for _ in range(INNER):
        loss = fit_loss(net, params, y)
        grads = torch.autograd.grad(loss * UP, list(params.values()), create_graph=create_graph)
        grads = [g / UP for g in grads]
        first = first or [g.detach() for g in grads]
        params = {k: p - lr * g for (k, p), g in zip(params.items(), grads)}
    return params, first


def main():
    torch.manual_seed(61)
    gen = torch.Generator().manual_seed(62)
    net = MapNet().to(device)
    meta = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 14)
    for step in range(80):
        total = 0.0
        for _ in range(TASKS):
            y = field(gen)
            params, first = inner_fit(net, y, lr=0.1)
            loss = fit_loss(net, params, y) / TASKS
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(meta)
        scaler.update()
        meta.zero_grad()
        if step % 20 == 0:
            print(f"step {step:3d} loss after inner fit {total:.3e}")
    test = torch.Generator().manual_seed(63)
    err = 0.0
    for _ in range(12):
        y = field(test)
        params, _ = inner_fit(net, y, lr=0.1, create_graph=False)
        err += fit_loss(net, params, y).item() / 12
    print(f"unseen fields {err:.3e}")
    return err


if __name__ == "__main__":
    main()
