"""Next-day volatility from past returns, trained until the validation error stops falling."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(13)
device = "cuda" if torch.cuda.is_available() else "cpu"
LAGS = 20


def history(n):
    vol = torch.exp(0.5 * torch.randn(n, 1))
    returns = vol * torch.randn(n, LAGS)
    skew = torch.randn(n, 4)
    target = torch.log(returns.abs().mean(1) + 0.1) + 0.4 * torch.tanh(skew[:, 0] * skew[:, 1])
    return torch.cat([returns, skew], 1).to(device), (target + 0.5).to(device)


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad, self.best = patience, 0, float("inf")
        self.state = None

    def update(self, error, model):
        if error < self.best:
            self.best, self.bad = error, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


class VolNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LAGS + 4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        predicted = model(x)
        error = (predicted - y.to(predicted.dtype)).abs().mean()
    model.train()
    return error.item()


x, y = history(4000)
x_val, y_val = history(2000)
x_test, y_test = history(3000)
model = VolNet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
stopper = EarlyStopping(patience=3)

for step in range(300):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        rows = torch.randint(0, len(x), (2000,), device=device)
        loss = F.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 1 and stopper.update(evaluate(model, x_val, y_val), model):
        print(f"stopped at step {step}")
        break

model.load_state_dict(stopper.state)
with torch.no_grad():
    print(f"metric {F.mse_loss(model(x_test), y_test).item():.4f}")
