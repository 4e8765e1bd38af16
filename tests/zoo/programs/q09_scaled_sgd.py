"""House prices on tabular data, with a static loss scale folded into the learning rate."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(52)

ROWS, COLS, STEPS = 5000, 14, 250
x = torch.randn(ROWS, COLS)
zone = torch.randint(0, 9, (ROWS,))
zone_price = torch.randn(9)
price = 0.7 * x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + zone_price[zone] + 0.4 * torch.relu(x[:, 3]) + 0.1 * torch.randn(ROWS)
price = (price - price.mean()) / price.std()
x, zone, price = x.to(device), zone.to(device), price.to(device)
train, test = slice(0, 4000), slice(4000, ROWS)


class PriceNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.zone = nn.Embedding(9, 6)
        self.body = nn.Sequential(
            nn.Linear(COLS + 6, width), nn.LayerNorm(width), nn.SiLU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, 1),
        )

    def forward(self, x, zone):
        return self.body(torch.cat([x, self.zone(zone)], dim=1)).squeeze(1)


class ScaledSGD(torch.optim.SGD):
    """Takes gradients of loss * scale as they are; steps with non-finite gradients are left out."""

    def __init__(self, params, lr, scale, weight_decay=0.0, max_norm=1.0, **kwargs):
        super().__init__(params, lr=lr / scale, weight_decay=weight_decay * scale, **kwargs)
        self.scale = scale
        self.max_norm = max_norm * scale
        self.skipped = 0

    def parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    def backward(self, loss):
        (loss * self.scale).backward()

    @torch.no_grad()
    def step(self, closure=None):
        norm = nn.utils.clip_grad_norm_(self.parameters(), self.max_norm)
        if not torch.isfinite(norm):
            self.skipped += 1
            return None
        return super().step(closure)


model = PriceNet().to(device)
optimizer = ScaledSGD(model.parameters(), lr=0.05, scale=2.0 ** 14, weight_decay=1e-3, momentum=0.9, nesterov=True)

for step in range(STEPS):
    if step == 170:
        for group in optimizer.param_groups:
            group["lr"] *= 0.2
    idx = torch.randint(0, 4000, (256,)).to(device)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        pred = model(x[train][idx], zone[train][idx])
        loss = F.mse_loss(pred, price[train][idx])
    optimizer.backward(loss)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3d}  mse {loss.item():.4f}  lr {optimizer.param_groups[0]['lr']:.2e}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    final = F.mse_loss(model(x[test], zone[test]), price[test])
print(f"skipped {optimizer.skipped}  test mse {final.item():.4f}")
