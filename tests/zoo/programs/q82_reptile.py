"""Reptile on dose-response curves: an initialisation that adapts to a new compound from ten wells."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
INNER, META, SHOTS = 16, 220, 10


class DynamicLossScaler:
    """After fp16util/loss_scaler.py of Megatron and DeepSpeed."""

    def __init__(self, init_scale=2.0**32, scale_factor=2.0, scale_window=1000, min_scale=1.0):
        self.cur_scale, self.cur_iter, self.last_overflow = init_scale, 0, -1
        self.factor, self.window, self.min_scale = scale_factor, scale_window, min_scale

    def backward(self, loss):
        (loss * self.cur_scale).backward()

    def has_overflow(self, params):
        return any(not torch.isfinite(p.grad).all() for p in params if p.grad is not None)

    def unscale(self, params):
        for p in params:
            p.grad.div_(self.cur_scale)

    def update_scale(self, overflow):
        if overflow:
            self.cur_scale = max(self.cur_scale / self.factor, self.min_scale)
            self.last_overflow = self.cur_iter
        elif (self.cur_iter - self.last_overflow) % self.window == 0:
            self.cur_scale *= self.factor
        self.cur_iter += 1


def compound():
    """A Hill curve of random potency, slope and efficacy, with a batch offset."""
    ec50, slope = 2 * torch.randn(1), 0.8 + 1.5 * torch.rand(1)
    top, base = 0.5 + torch.rand(1), 0.3 * torch.randn(1)

    def measure(n, noise=0.03):
        dose = 8 * torch.rand(n, 1) - 4
        return dose.to(device), (base + top * torch.sigmoid(slope * (dose - ec50)) + noise * torch.randn(n, 1)).to(device)

    return measure


def fit(model, x, y, lr=0.03):
    """Adapt a copy of the model to a compound."""
    learner = copy.deepcopy(model)
    params = list(learner.parameters())
    opt = torch.optim.SGD(params, lr=lr, momentum=0.8)
    scaler = DynamicLossScaler()
    for _ in range(INNER):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(learner(x), y)
        opt.zero_grad()
        scaler.backward(loss)
        overflow = scaler.has_overflow(params)
        if not overflow:
            scaler.unscale(params)
            opt.step()
        scaler.update_scale(overflow)
    return learner


model = nn.Sequential(
    nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
).to(device)
running = 0.0
for meta in range(META):
    measure = compound()
    x, y = measure(SHOTS)
    learner = fit(model, x, y)
    rate = 0.3 * (1 - meta / META)
    with torch.no_grad():
        for p, q in zip(model.parameters(), learner.parameters()):
            p.add_(q - p, alpha=rate)
        fitted = nn.functional.mse_loss(learner(x), y).item()
    running = fitted if meta == 0 else 0.95 * running + 0.05 * fitted
    if meta % 44 == 0:
        print(f"compound {meta} error at the wells {running:.4f}")

errors = []
for _ in range(40):
    measure = compound()
    learner = fit(model, *measure(SHOTS))
    x, y = measure(100, noise=0.0)
    with torch.no_grad():
        errors.append(nn.functional.mse_loss(learner(x), y).item())
print(f"METRIC {sum(errors) / len(errors):.4f}")
