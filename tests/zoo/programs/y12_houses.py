# House price regression. Loss is taken in dollars so that the log reads in dollars.
import torch
import torch.nn as nn

torch.manual_seed(81)
device = "cuda" if torch.cuda.is_available() else "cpu"

N, F_IN = 6000, 14
g = torch.Generator().manual_seed(82)
X = torch.randn(N, F_IN, generator=g)
signal = X[:, 0] + 0.5 * X[:, 1] * X[:, 2] + torch.tanh(2 * X[:, 3]) - 0.3 * X[:, 4]
price = 320_000 + 95_000 * (signal + 0.2 * torch.randn(N, generator=g))
P_MEAN, P_STD = price[:5000].mean().item(), price[:5000].std().item()


class PriceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(F_IN, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def to_dollars(z):
    return z.float() * P_STD + P_MEAN


net = PriceNet().to(device)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
X, price = X.to(device), price.to(device)
bad = 0

for epoch in range(10):
    order = torch.randperm(5000, generator=g)
    for lo in range(0, 5000, 250):
        idx = order[lo:lo + 250]
        opt.zero_grad()
        with torch.autocast(device_type=device, dtype=torch.float16):
            z = net(X[idx])
            loss = nn.functional.mse_loss(to_dollars(z), price[idx])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if not torch.isfinite(norm):      # corrupt rows happen, skip the batch
            bad += 1
            continue
        opt.step()
    with torch.no_grad():
        rmse = (to_dollars(net(X[5000:])) - price[5000:]).pow(2).mean().sqrt().item()
    print(f"epoch {epoch} train loss {loss.item():.3e} held-out rmse ${rmse:,.0f} skipped so far {bad}")
