"""Next-bar forecast for index futures. A ring buffer keeps the latest bars, batches are drawn from it."""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
N_ASSETS, WINDOW, CAP = 6, 12, 4000


class Market:
    """Six correlated contracts, momentum in returns, quoted in points."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.price = torch.tensor([4212.0, 15120.0, 2031.0, 34410.0, 7350.0, 27900.0], dtype=torch.float64)
        self.mom = torch.zeros(N_ASSETS, dtype=torch.float64)

    def bar(self):
        common = torch.randn(1, generator=self.g).double()
        own = torch.randn(N_ASSETS, generator=self.g).double()
        ret = 0.6 * self.mom + 1.2e-4 * (0.5 * common + own)
        self.mom = 0.5 * self.mom + 0.5 * ret
        self.price = self.price * (1 + ret)
        return self.price.clone()


class Ring:
    def __init__(self, cap, width, dtype):
        self.data = torch.zeros(cap, width, dtype=dtype, device=device)
        self.head = self.filled = 0

    def push(self, row):
        self.data[self.head] = row.to(self.data.dtype)
        self.head = (self.head + 1) % len(self.data)
        self.filled = min(self.filled + 1, len(self.data))

    def windows(self, n, length, gen):
        start = torch.randint(0, self.filled - length, (n,), generator=gen)
        rows = start[:, None] + torch.arange(length)
        return self.data[rows.to(self.data.device)]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.Sequential(nn.Flatten(), nn.Linear(WINDOW * N_ASSETS, 96), nn.SiLU(), nn.Linear(96, 48), nn.SiLU())
        self.head = nn.Linear(48, N_ASSETS)

    def forward(self, r):
        return self.head(self.gru(r))


def to_returns(levels):
    levels = levels.float()
    return (levels[:, 1:] / levels[:, :-1] - 1.0) * 5e3


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    market = Market(5)
    ring = Ring(CAP, N_ASSETS, torch.float16)
    for _ in range(1500):
        ring.push(market.bar())
    net = Forecaster().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1.5e-3, weight_decay=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    for step in range(250):
        for _ in range(8):
            ring.push(market.bar())
        rets = to_returns(ring.windows(128, WINDOW + 2, gen))
        past, nxt = rets[:, :-1], rets[:, -1]
        with torch.autocast(device, dtype=torch.float16):
            pred = net(past)
            loss = nn.functional.smooth_l1_loss(pred.float(), nxt)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    path = torch.stack([market.bar() for _ in range(1200)])
    live = path.unfold(0, WINDOW + 2, 1).transpose(1, 2)
    live = ((live[:, 1:] / live[:, :-1] - 1.0) * 5e3).float().to(device)
    with torch.no_grad():
        pred = net(live[:, :-1])
    ic = torch.corrcoef(torch.stack([pred.flatten(), live[:, -1].flatten()]))[0, 1].item()
    mse = nn.functional.mse_loss(pred, live[:, -1]).item()
    print(f"live information coefficient {ic:.3f} mse {mse:.4f}")
    return ic, mse


if __name__ == "__main__":
    main()
