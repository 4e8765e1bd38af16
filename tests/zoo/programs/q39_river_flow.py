"""Conditional density of river discharge: a mixture of Gaussians whose parameters come from the catchment."""
import math

import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self, inputs, width=96, parts=5):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.out = nn.Linear(width, 3 * parts)

    def forward(self, x):
        logit, mean, scale = self.out(self.trunk(x)).float().chunk(3, -1)
        return logit.log_softmax(-1), mean, scale.clamp(-5, 3)


def nll(mixture, y):
    logit, mean, scale = mixture
    each = -0.5 * ((y[:, None] - mean) * torch.exp(-scale)) ** 2 - scale - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(logit + each, -1).mean()


def catchments(n, ground, device):
    x = torch.randn(n, 10, device=device)
    a, b, c = (x @ ground).unbind(-1)
    flip = torch.where(torch.rand(n, device=device) < torch.sigmoid(2 * c), 1.0, -1.0)
    y = torch.sin(1.5 * a) + flip * (1 + 0.5 * torch.tanh(b)) + 0.15 * torch.randn(n, device=device)
    return x.to(torch.bfloat16), y


def main(steps=500, lr=2e-4):
    torch.manual_seed(29)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ground = nn.functional.normalize(torch.randn(10, 3, device=device), dim=0)
    net = Mixture(10).to(device).to(torch.bfloat16)
    weights = list(net.parameters())
    master = [w.detach().clone() for w in weights]
    optimizer = torch.optim.AdamW(master, lr=lr, weight_decay=1e-4)
    for step in range(steps):
        x, y = catchments(256, ground, device)
        loss = nll(net(x), y)
        net.zero_grad(set_to_none=True)
        loss.backward()
        for m, w in zip(master, weights):
            m.grad = w.grad.to(m.dtype)
        optimizer.step()
        with torch.no_grad():
            for m, w in zip(master, weights):
                w.copy_(m)
        if step % 100 == 0:
            print(f"{step:5d} nll {loss.item():.4f}")
    with torch.no_grad():
        x, y = catchments(8192, ground, device)
        print("METRIC", round(nll(net(x), y).item(), 4))


if __name__ == "__main__":
    main()
