"""Delivery minutes per courier: the table of courier means lives in half with a carry term; the rest goes through Adam."""
import torch
import torch.nn as nn
import torch.nn.functional as F

COURIERS = 48


class DelayModel(nn.Module):
    def __init__(self, level):
        super().__init__()
        self.level = nn.Parameter(level[:, None].to(torch.float16))
        self.context = nn.Sequential(nn.Linear(9, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, courier, ctx):
        base = F.embedding(courier, self.level)
        return (base.float() + self.context(ctx).float()).squeeze(-1)


class TableSGD:
    def __init__(self, table, lr):
        self.table, self.lr = table, lr
        self.carry = torch.zeros_like(table)

    @torch.no_grad()
    def step(self, scale):
        grad = self.table.grad.float() / scale
        if torch.isfinite(grad).all():
            move = (-self.lr * grad - self.carry.float()).to(self.table.dtype)
            new = self.table + move
            self.carry.copy_((new - self.table) - move)
            self.table.copy_(new)
        self.table.grad = None


def trips(n, seed, minutes, device):
    g = torch.Generator().manual_seed(seed)
    courier = torch.randint(0, COURIERS, (n,), generator=g)
    ctx = torch.randn(n, 9, generator=g)
    y = minutes[courier] + 2.5 * ctx[:, 4] - 2 * torch.relu(ctx[:, 1]) + 1.5 * ctx[:, 2] * ctx[:, 3]
    y = y + torch.randn(n, generator=g)
    return courier.to(device), ctx.to(device), y.to(device)


def main(steps=240, batch=512):
    torch.manual_seed(23)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    g = torch.Generator().manual_seed(14)
    last_month = 18 + 12 * torch.rand(COURIERS, generator=g)
    this_month = last_month + 2 * torch.randn(COURIERS, generator=g)
    model = DelayModel(last_month).to(device)
    opt = torch.optim.Adam(model.context.parameters(), lr=3e-3)
    table_opt = TableSGD(model.level, lr=0.5)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    data = trips(60000, 15, this_month, device)
    for step in range(steps):
        pick = torch.randint(0, 60000, (batch,)).to(device)
        courier, ctx, y = (t[pick] for t in data)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.mse_loss(model(courier, ctx), y)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        table_opt.step(scaler.get_scale())
        scaler.step(opt)
        scaler.update()
        if step % 48 == 0:
            print(f"step {step}  mse {loss.item():.3f}")
    courier, ctx, y = trips(6000, 16, this_month, device)
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        mse = F.mse_loss(model(courier, ctx), y).item()
    off = (model.level.detach().float().squeeze(1).cpu() - this_month).pow(2).mean().sqrt().item()
    print(f"holdout mse {mse:.3f}  level rmse {off:.3f} (last month {(last_month - this_month).pow(2).mean().sqrt().item():.3f})")


if __name__ == "__main__":
    main()
