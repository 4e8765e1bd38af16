"""Claim counts per policy (negative binomial), all weights in bfloat16 with a compensated momentum step."""
import torch
from torch import nn


class CompensatedSGD:
    def __init__(self, params, lr, momentum=0.9):
        self.params, self.lr, self.momentum = list(params), lr, momentum
        self.velocity = [torch.zeros_like(p) for p in self.params]
        self.carry = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        for p, v, c in zip(self.params, self.velocity, self.carry):
            v.mul_(self.momentum).add_(p.grad)
            change = c - self.lr * v
            before = p.clone()
            p.add_(change)
            c.copy_(change - (p - before))

    def zero_grad(self):
        for p in self.params:
            p.grad = None


class Claims(nn.Module):
    def __init__(self, features, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.rate = nn.Linear(width, 1)
        self.shape = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        h = self.body(x)
        return self.rate(h).squeeze(-1).float(), self.shape.float()


def nll(log_rate, log_shape, count):
    rate, shape = log_rate.exp(), log_shape.exp()
    total = torch.log(shape + rate)
    return (torch.lgamma(shape) + torch.lgamma(count + 1) - torch.lgamma(count + shape)
            - shape * (log_shape - total) - count * (log_rate - total)).mean()


def policies(n, w, device):
    x = torch.randn(n, 12, device=device)
    rate = torch.exp(0.8 + 0.9 * torch.tanh(x @ w[0]) + 0.7 * torch.sin(x @ w[1]))
    noise = torch.distributions.Gamma(4.0, 4.0).sample((n,)).to(device)
    return x, torch.poisson(rate * noise)


def main():
    torch.manual_seed(43)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    w = torch.randn(2, 12, device=device) / 3
    model = Claims(12).to(device).to(torch.bfloat16)
    optimizer = CompensatedSGD(model.parameters(), lr=2e-3)
    for step in range(900):
        x, count = policies(128, w, device)
        loss = nll(*model(x.to(torch.bfloat16)), count)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 150 == 0:
            print(f"step {step} nll {loss.item():.4f}")
    with torch.no_grad():
        x, count = policies(16384, w, device)
        print("METRIC", round(nll(*model(x.to(torch.bfloat16)), count).item(), 4))


main()
