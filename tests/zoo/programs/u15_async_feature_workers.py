"""Click-through model; feature threads normalise counters in float64 and ship them in half precision."""
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(404)
ITEMS, DENSE = 500, 8


class Welford:
    def __init__(self, n):
        self.n = 0
        self.mean = torch.zeros(n, dtype=torch.float64)
        self.m2 = torch.zeros(n, dtype=torch.float64)

    def update(self, x):
        x = x.double()
        k = x.shape[0]
        mu = x.mean(0)
        delta = mu - self.mean
        total = self.n + k
        self.m2 += ((x - mu) ** 2).sum(0) + delta ** 2 * self.n * k / total
        self.mean += delta * k / total
        self.n = total

    def apply(self, x):
        return ((x.double() - self.mean) / (self.m2 / self.n).sqrt()).clamp(-8, 8)


weights = torch.randn(DENSE) * 0.7
taste = torch.randn(ITEMS)


def raw(seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(128, DENSE, generator=g)
    counters = 50000.0 + 9000.0 * z
    item = torch.randint(0, ITEMS, (128,), generator=g)
    label = (torch.rand(128, generator=g) < torch.sigmoid(z @ weights + taste[item])).float()
    return counters, item, label


stats = Welford(DENSE)
for s in range(1000, 1010):
    stats.update(raw(s)[0])


def prepare(seed):
    counters, item, label = raw(seed)
    return stats.apply(counters).half(), item, label


class CTR(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, 8)
        self.mlp = nn.Sequential(nn.Linear(DENSE + 8, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, item):
        return self.mlp(torch.cat([dense, self.item(item)], 1)).squeeze(1)


net = CTR().to(device)
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler(device.type, init_scale=4096.0)
with ThreadPoolExecutor(2) as ex:
    for step, (dense, item, label) in enumerate(ex.map(prepare, range(60))):
        dense, item, label = dense.to(device), item.to(device), label.to(device)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = nn.functional.binary_cross_entropy_with_logits(net(dense, item), label)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 20 == 19:
            print(step, f"{loss.item():.4f}")
