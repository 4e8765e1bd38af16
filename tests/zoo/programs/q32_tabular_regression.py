import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"

ROWS, FEATURES, BATCH, STEPS = 4096, 24, 128, 200


class HalfPrecisionOptimizer:
    """Loss scaling around a plain optimizer: scale, unscale, skip on overflow, grow."""

    def __init__(self, optimizer, init_scale=2.0 ** 8, growth_interval=15, growth=2.0, backoff=0.5):
        self.optimizer = optimizer
        self.scale = init_scale
        self.inv_scale = 1.0 / init_scale
        self.growth_interval, self.growth, self.backoff = growth_interval, growth, backoff
        self.good_steps, self.skipped = 0, 0

    @property
    def params(self):
        return [p for g in self.optimizer.param_groups for p in g["params"] if p.grad is not None]

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss):
        (loss * self.scale).backward()

    def unscale(self):
        for p in self.params:
            p.grad.mul_(self.inv_scale)

    def overflowed(self):
        return any(not torch.isfinite(p.grad).all() for p in self.params)

    def step(self, max_norm=None):
        self.unscale()
        if self.overflowed():
            self.scale *= self.backoff
            self.good_steps = 0
            self.skipped += 1
            return
        if max_norm is not None:
            nn.utils.clip_grad_norm_(self.params, max_norm)
        self.optimizer.step()
        self.good_steps += 1
        if self.good_steps % self.growth_interval == 0:
            self.scale *= self.growth


class ResidualMLP(nn.Module):
    def __init__(self, features, width=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).squeeze(1)


generator = torch.Generator().manual_seed(14)
x = torch.randn(ROWS, FEATURES, generator=generator)
w = torch.randn(FEATURES, generator=generator) / FEATURES ** 0.5
y = torch.sin(2.0 * (x @ w)) + 0.5 * x[:, 0] * x[:, 1] + 0.05 * torch.randn(ROWS, generator=generator)
train_x, train_y = x[:3584].to(device), y[:3584].to(device)
test_x, test_y = x[3584:].to(device), y[3584:].to(device)

model = ResidualMLP(FEATURES).to(device)
optimizer = HalfPrecisionOptimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))

for step in range(STEPS):
    idx = torch.randint(0, len(train_x), (BATCH,), generator=generator).to(device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(train_x[idx]), train_y[idx])
    optimizer.backward(loss)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}  scale {optimizer.scale:.0f}  skipped {optimizer.skipped}")

with torch.no_grad():
    print(f"test mse {F.mse_loss(model(test_x), test_y).item():.4f}")
