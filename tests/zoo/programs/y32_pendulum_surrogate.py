# Surrogate for a damped pendulum integrator: (theta, omega, damping) -> state after 0.2 s.
# Loss scaling here is static: the loss is multiplied by S, and the learning rate divided by S.
import math

import torch
from torch import nn

torch.manual_seed(3)
dev = "cuda" if torch.cuda.is_available() else "cpu"
S = 4096.0
LR = 0.08


def simulate(s, dt=0.01, n=20):
    th, om, c = s.unbind(-1)
    for _ in range(n):
        om = om + dt * (-9.81 * torch.sin(th) - c * om)
        th = th + dt * om
    return torch.stack([th, om], -1)


def sample(n):
    s = torch.empty(n, 3)
    s[:, 0].uniform_(-math.pi / 2, math.pi / 2)
    s[:, 1].uniform_(-2, 2)
    s[:, 2].uniform_(0, 1)
    return s, simulate(s) / torch.tensor([1.0, 3.0])


net = nn.Sequential(
    nn.Linear(3, 64), nn.Tanh(),
    nn.Linear(64, 64), nn.Tanh(),
    nn.Linear(64, 2),
).to(dev)
# momentum is linear in the gradient, so dividing the rate by S gives the same path
sgd = torch.optim.SGD(net.parameters(), lr=LR / S, momentum=0.9)

history = []
for it in range(300):
    x, y = sample(256)
    x, y = x.to(dev), y.to(dev)
    with torch.autocast(dev, dtype=torch.float16):
        pred = net(x)
        loss = nn.functional.mse_loss(pred, y)
    sgd.zero_grad()
    (loss * S).backward()
    sgd.step()
    history.append(loss.item())
    if it % 60 == 0:
        print(it, "mse", round(history[-1], 5))

tail = sum(history[-20:]) / 20
print(f"FINAL loss={tail:.6f}")
