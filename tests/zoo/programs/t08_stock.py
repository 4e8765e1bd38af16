"""Order quantities of a retailer, learned through a simulator of the season that has no derivatives of its own."""
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
DIM, H = 10, 0.01
PRICE, COST, SALVAGE, RUSH = 10.0, 6.0, 2.0, 8.5


@torch.no_grad()
def season(order, demand, margin):
    """Profit per item in hundreds: sales, clearance of what is left, and rush orders for part of what is short."""
    sold = torch.minimum(order, demand)
    left = (order - demand).clamp(min=0)
    short = (demand - order).clamp(min=0)
    rush = torch.minimum(short, 0.1 * order)
    profit = PRICE * margin * sold + SALVAGE * left + (PRICE * margin - RUSH) * rush - COST * order
    return profit / 100


class Season(torch.autograd.Function):
    """Central differences; each item's profit depends on its own order only."""

    @staticmethod
    def forward(ctx, order, demand, margin):
        ctx.save_for_backward(order, demand, margin)
        return season(order, demand, margin)

    @staticmethod
    def backward(ctx, grad):
        order, demand, margin = ctx.saved_tensors
        up = season(order + H, demand, margin)
        down = season(order - H, demand, margin)
        return grad * (up - down) / (2 * H), None, None


class Buyer(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(DIM + 1, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(self, x, margin):
        z = self.net(torch.cat([x, margin[:, None]], dim=1)).squeeze(1)
        return 30.0 * nn.functional.elu(z) + 40.0


def items(n):
    x = torch.randn(n, DIM)
    margin = 0.8 + 0.4 * torch.rand(n)
    level = 55 * torch.exp(0.4 * x @ w + 0.2 * torch.sin(2 * x[:, 0]))
    demand = level * torch.exp(0.3 * torch.randn(n) - 0.3 * (margin - 1))
    return x.to(device), margin.to(device), demand.to(device)


w = torch.randn(DIM)
w = w / w.norm()
buyer = Buyer().to(device)
opt = torch.optim.Adam(buyer.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
STEPS = 1500
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)

for step in range(STEPS):
    x, margin, demand = items(256)
    with torch.autocast("cuda", dtype=torch.float16):
        order = buyer(x, margin)
        profit = Season.apply(order, demand, margin)
        loss = -profit.mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    if step % 300 == 0:
        print(f"step {step:4d} profit {profit.mean().item():.4f} order {order.float().mean().item():.1f}")

x, margin, demand = items(20000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    order = buyer(x, margin).float()
best = season(demand, demand, margin).clamp(min=0).mean()
regret = best - season(order, demand, margin).mean()
print(f"mean order {order.mean().item():.1f}, mean demand {demand.mean().item():.1f}")
print(f"METRIC {regret.item():.4f}")
