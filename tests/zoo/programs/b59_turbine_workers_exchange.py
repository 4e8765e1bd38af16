# Remaining useful life of gas turbines: data-parallel workers (simulated in one process) that exchange gradients in
# two bytes.  Residual blocks are recomputed in the backward pass.
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"

WORKERS = 3
SENSORS, CYCLES = 10, 20
BATCH = 40
STEPS = 100


def fleet(n, gen):
    """Sensor histories that drift with the health of the engine; the target is the life left, in units of 100 cycles."""
    life = 1.3 * torch.rand(n, generator=gen)
    rate = 0.7 + 0.6 * torch.rand(n, 1, 1, generator=gen)
    cycle = torch.arange(CYCLES).float()[None, :, None] / CYCLES
    health = torch.exp(-2.2 * (life[:, None, None] + 0.25 * (1 - cycle)) * rate)
    direction = torch.linspace(-1, 1, SENSORS)[None, None, :]
    x = 2.2 * health * direction + 0.8 * (rate - 1) * direction.flip(-1).abs()
    x = x + 0.35 * torch.randn(n, CYCLES, SENSORS, generator=gen)
    return x.flatten(1), life


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class LifeNet(nn.Module):
    def __init__(self, width=48, depth=2):
        super().__init__()
        self.inlet = nn.Linear(SENSORS * CYCLES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.outlet = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inlet(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return self.outlet(h).squeeze(1)


class Exchange:
    """Collects the gradients of all workers through hooks; each tensor goes as fp16 with one fp32 factor."""

    def __init__(self, model):
        self.total = {}
        for name, p in model.named_parameters():
            p.register_hook(self.hook(name))

    def hook(self, name):
        def send(grad):
            factor = grad.abs().max().clamp_min(1e-30)
            packet = (grad / factor).to(torch.float16)
            received = packet.float() * factor
            self.total[name] = self.total.get(name, 0) + received / WORKERS
            return grad

        return send

    def deliver(self, model):
        for name, p in model.named_parameters():
            p.grad = self.total[name]
        self.total = {}


def main():
    torch.manual_seed(29)
    gen = torch.Generator().manual_seed(14)
    shards = [fleet(2500, gen) for _ in range(WORKERS)]
    x_test, y_test = fleet(3000, gen)

    model = LifeNet().to(device)
    exchange = Exchange(model)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(STEPS):
        losses = []
        for x, y in shards:
            pick = torch.randint(0, len(x), (BATCH,), generator=gen)
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(x[pick].to(device))
                loss = nn.functional.smooth_l1_loss(out, y[pick].to(device), beta=0.2)
            opt.zero_grad()
            scaler.scale(loss).backward()
            losses.append(loss.item())
        exchange.deliver(model)
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 30 == 0:
            print(f"{step:4d}  {sum(losses) / WORKERS:.4f}")

    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        out = model(x_test.to(device)).float().cpu()
    rmse = (out - y_test).pow(2).mean().sqrt().item()
    print(f"final metric: {rmse:.4f}")


if __name__ == "__main__":
    main()
