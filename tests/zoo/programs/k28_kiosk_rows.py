"""Next-hour sales of snack kiosks. Every transaction row (kiosk, product, minute of day, price, units) sits in one fp16 table."""
import numpy as np
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
KIOSKS, PRODUCTS, ROWS = 300, 1900, 150_000
EPOCH0 = 1_700_000_000.0


def make_table(seed=1):
    rng = np.random.default_rng(seed)
    kiosk, product = rng.integers(0, KIOSKS, ROWS), rng.integers(0, PRODUCTS, ROWS)
    stamp = EPOCH0 + rng.uniform(0, 14 * 86400, ROWS)
    price = np.round(rng.uniform(0.5, 9.0, ROWS) * 4) / 4
    minute = ((stamp - EPOCH0) % 86400) // 60
    appeal, place = rng.normal(size=PRODUCTS), rng.normal(size=KIOSKS)
    rate = np.exp(0.8 + 0.5 * appeal[product] + 0.4 * place[kiosk] - 0.12 * price + 0.5 * np.sin(2 * np.pi * minute / 1440))
    units = rng.poisson(rate)
    return np.column_stack([kiosk, product, minute, price, units]).astype(np.float16)


class Demand(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.kiosk, self.product = nn.Embedding(KIOSKS, dim), nn.Embedding(PRODUCTS, dim)
        self.net = nn.Sequential(nn.Linear(2 * dim + 3, 48), nn.SiLU(), nn.Linear(48, 1))
        nn.init.normal_(self.kiosk.weight, std=0.2)
        nn.init.normal_(self.product.weight, std=0.2)

    def forward(self, rows):
        angle = rows[:, 2].float() * (2 * np.pi / 1440)
        dense = torch.stack([angle.sin(), angle.cos(), rows[:, 3].float() / 5], 1)
        z = torch.cat([self.kiosk(rows[:, 0].long()), self.product(rows[:, 1].long()), dense], 1)
        return self.net(z).squeeze(1)


table = torch.from_numpy(make_table()).to(device)
train, test = table[:130_000], table[130_000:]
torch.manual_seed(0)
model = Demand().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 22)
pick = torch.Generator().manual_seed(6)
nll = nn.PoissonNLLLoss()
skipped = 0
for step in range(1, 201):
    rows = train[torch.randint(0, len(train), (1024,), generator=pick).to(device)]
    with torch.autocast(device, dtype=torch.float16):
        loss = nll(model(rows).float(), rows[:, 4].float())
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 50 == 0:
        with torch.no_grad():
            held = nll(model(test), test[:, 4].float()).item()
        print(f"step {step} loss {loss.item():.4f} held-out {held:.4f} skipped {skipped}")
print(f"final held-out deviance {held:.4f}")
