"""Surge in a harbour after a storm: a recurrent net with momentum that stores no states.

Each hour v <- g * v + (1 - g) * f(x, weather) and x <- x + v; the gradient runs the hours backwards.
"""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, HOURS, WIDTH, MOMENTUM = 160, 16, 20, 0.4


class Hours(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, v, weather, block):
        for hour in weather.unbind(1):
            v = MOMENTUM * v + (1 - MOMENTUM) * block(torch.cat([x, hour.to(x.dtype)], 1))
            x = x + v
        ctx.block = block
        ctx.save_for_backward(x.detach(), v.detach(), weather)
        return x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad_x):
        x, v, weather = ctx.saved_tensors
        grad_v = torch.zeros_like(v)
        for hour in reversed(weather.unbind(1)):
            x = x - v
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                force = ctx.block(torch.cat([inner, hour.to(x.dtype)], 1))
            v = (v - (1 - MOMENTUM) * force.detach()) / MOMENTUM
            grad_v = grad_v + grad_x
            torch.autograd.backward(force, ((1 - MOMENTUM) * grad_v).to(force.dtype))
            grad_x = grad_x + inner.grad
            grad_v = MOMENTUM * grad_v
        return grad_x, grad_v, None, None


class SurgeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, WIDTH)
        self.force = nn.Sequential(nn.Linear(WIDTH + 3, 32), nn.SiLU(), nn.Linear(32, WIDTH))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, start, weather):
        x = self.stem(start)
        x = Hours.apply(x, torch.zeros_like(x), weather, self.force)
        return self.out(x).squeeze(-1)


def harbour(count, generator):
    weather = torch.randn(count, HOURS, 3, generator=generator)
    start = torch.randn(count, 2, generator=generator)
    level, speed = start.unbind(1)
    for hour in range(HOURS):
        wind, pressure, flow = weather[:, hour].unbind(1)
        speed = 0.6 * speed + 0.3 * wind * wind.abs() - 0.3 * torch.tanh(pressure) * flow - 0.15 * level
        level = level + speed
    return start.to(device), weather.to(device), level.to(device)


torch.manual_seed(11)
generator = torch.Generator().manual_seed(12)
model = SurgeNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for step in range(STEPS):
    start, weather, level = harbour(96, generator)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(start, weather), level)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")
start, weather, level = harbour(2000, generator)
with torch.no_grad():
    print(f"metric {(nn.functional.mse_loss(model(start, weather), level) / level.var()).item():.4f}")
