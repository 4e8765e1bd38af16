"""Intraday return regression: an MLP on standardized signals, target in raw return units."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Config:
    seed: int = 7
    steps: int = 250
    batch_size: int = 1024
    width: int = 96
    lr: float = 3e-3
    amp_dtype: torch.dtype = torch.float16


class ReturnModel(nn.Module):
    def __init__(self, signals, width):
        super().__init__()
        self.inp = nn.Linear(signals, width)
        self.mid = nn.Linear(width, width)
        self.top = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = F.silu(self.inp(x))
        x = F.silu(self.mid(x))
        x = F.silu(self.top(x))
        return self.out(x).squeeze(-1)


def synth_returns(n, loadings):
    signals = torch.randn(n, 10)
    factors = torch.tanh(signals @ loadings)
    alpha = factors[:, 0] * factors[:, 1] + 1.5 * factors[:, 2].abs() - 0.9
    returns = 1e-3 * (alpha + 0.2 * torch.randn(n))
    return signals, returns


def r_squared(model, signals, returns, cfg):
    with torch.no_grad(), torch.autocast("cuda", dtype=cfg.amp_dtype):
        pred = model(signals.to(device)).float().cpu()
    return 1.0 - ((pred - returns) ** 2).mean().item() / returns.var().item()


def train(cfg):
    loadings = torch.randn(10, 3) * 0.4
    train_x, train_y = synth_returns(20000, loadings)
    val_x, val_y = synth_returns(4000, loadings)

    model = ReturnModel(10, cfg.width).to(device)
    nn.init.zeros_(model.out.weight)
    nn.init.zeros_(model.out.bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=cfg.amp_dtype == "float16")

    for step in range(cfg.steps):
        idx = torch.randint(0, len(train_x), (cfg.batch_size,))
        x, y = train_x[idx].to(device), train_y[idx].to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=cfg.amp_dtype):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step:3d}  mse {loss.item():.3e}")
    return r_squared(model, val_x, val_y, cfg)


if __name__ == "__main__":
    config = Config()
    torch.manual_seed(config.seed)
    print(f"val R2 {train(config):.3f}")
