"""Coupling flow of stellar colours that is stopped and resumed from compact checkpoints (a queue of short jobs)."""
import copy

import torch
from torch import nn

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
DIM = 8
mix = torch.randn(DIM, DIM) / DIM**0.5


def colours(n):
    u = torch.randn(n, DIM)
    x = u @ mix + 0.3 * torch.sin(2 * u.roll(1, 1))
    return x.to(device)


class Coupling(nn.Module):
    def __init__(self, flip, width=48):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(DIM // 2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, DIM))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        shift, log_scale = self.net(a).float().chunk(2, dim=1)
        log_scale = 1.5 * torch.tanh(log_scale)
        b = b * log_scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], dim=1), log_scale.sum(1)


class Flow(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(depth))

    def nll(self, x):
        logdet = 0
        for layer in self.layers:
            x, part = layer(x)
            logdet = logdet + part
        return (0.5 * x.float().pow(2).sum(1) - logdet).mean() / DIM


def compact(state):
    """Halve the size of a checkpoint."""
    if isinstance(state, torch.Tensor):
        return state.half() if state.is_floating_point() and state.numel() > 1 else state
    if isinstance(state, dict):
        return {k: compact(v) for k, v in state.items()}
    if isinstance(state, list):
        return [compact(v) for v in state]
    return state


def build():
    model = Flow().to(device)
    return model, torch.optim.Adam(model.parameters(), lr=8e-3), torch.amp.GradScaler("cuda")


def train(model, optimizer, scaler, steps):
    for _ in range(steps):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model.nll(colours(128))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


store = {}
model, optimizer, scaler = build()
print("loss before the stop", train(model, optimizer, scaler, 20))
for session in range(24):
    store["model"] = copy.deepcopy(model.state_dict())
    store["optimizer"] = compact(copy.deepcopy(optimizer.state_dict()))
    store["scaler"] = scaler.state_dict()
    model, optimizer, scaler = build()
    model.load_state_dict(store["model"])
    optimizer.load_state_dict(store["optimizer"])
    scaler.load_state_dict(store["scaler"])
    print(f"session {session}:", train(model, optimizer, scaler, 5))

with torch.no_grad():
    print("metric:", model.nll(colours(4000)).item())
