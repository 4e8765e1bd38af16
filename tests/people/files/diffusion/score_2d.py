#!/usr/bin/env python
"""Score matching on a spiral. Plain FP32, no AMP yet."""
import argparse

import numpy as np
import torch
import torch.nn as nn


class ScoreNet(nn.Module):
    def __init__(self, hidden: int, n_layers: int):
        super().__init__()
        layers, d = [], 3
        for _ in range(n_layers):
            layers += [nn.Linear(d, hidden), nn.SiLU()]
            d = hidden
        self.net = nn.Sequential(*layers, nn.Linear(d, 2))

    def forward(self, x, sigma):
        return self.net(torch.cat([x, sigma.log()], dim=-1)) / sigma


def spiral(n, rng):
    t = np.sqrt(rng.random(n)) * 3 * np.pi
    x = np.stack([t * np.cos(t), t * np.sin(t)], 1) / 10
    return torch.tensor(x + rng.normal(size=(n, 2)) * 0.02, dtype=torch.float32)


def main(args):
    rng = np.random.default_rng(args.seed)
    net = ScoreNet(args.hidden, args.layers)
    if torch.cuda.is_available():
        net = net.cuda()
    dev = next(net.parameters()).device
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sigmas = torch.logspace(0, -2, 10)
    for step in range(args.steps):
        x = spiral(args.batch, rng).to(dev)
        sigma = sigmas[torch.randint(0, 10, (args.batch,))].unsqueeze(1).to(dev)
        noise = torch.randn_like(x)
        score = net(x + sigma * noise, sigma)
        loss = ((sigma * score + noise) ** 2).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(step, float(loss))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
