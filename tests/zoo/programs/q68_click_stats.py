"""Online click prediction: an MLP on dense features and on running click rates of publisher and advertiser."""
import torch
from torch import nn

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
SITES, ADS, BATCH, STEPS = 80, 50, 512, 1300


class Market:
    """Impressions whose click rates drift: publishers redesign pages, campaigns change creatives."""

    def __init__(self):
        self.site = torch.randn(SITES, device=device)
        self.ad = torch.randn(ADS, device=device)
        self.dense = torch.randn(6, device=device) * 0.2

    def drift(self):
        keep = 0.998
        noise = (1 - keep**2) ** 0.5
        self.site = keep * self.site + noise * torch.randn(SITES, device=device)
        self.ad = keep * self.ad + noise * torch.randn(ADS, device=device)

    def batch(self):
        self.drift()
        s = torch.randint(SITES, (BATCH,), device=device)
        a = torch.randint(ADS, (BATCH,), device=device)
        x = torch.randn(BATCH, 6, device=device)
        logit = -1.2 + self.site[s] + self.ad[a] + x @ self.dense
        return s, a, x, (torch.rand(BATCH, device=device) < logit.sigmoid()).float()


class RateTable:
    """Discounted impressions and clicks per key."""

    def __init__(self, size, discount=0.997, prior=0.25, strength=10.0):
        self.seen = torch.zeros(size, dtype=torch.bfloat16, device=device)
        self.clicked = torch.zeros(size, dtype=torch.bfloat16, device=device)
        self.discount, self.prior, self.strength = discount, prior, strength

    def features(self, key):
        seen, clicked = self.seen[key].float(), self.clicked[key].float()
        rate = (clicked + self.prior * self.strength) / (seen + self.strength)
        return torch.stack([torch.logit(rate.clamp(1e-4, 1 - 1e-4)), torch.log1p(seen) / 8], 1)

    def update(self, key, click):
        size = len(self.seen)
        seen = torch.bincount(key, minlength=size)
        clicked = torch.bincount(key, weights=click, minlength=size)
        self.seen = self.seen.mul(self.discount).add(seen.to(self.seen.dtype))
        self.clicked = self.clicked.mul(self.discount).add(clicked.to(self.clicked.dtype))


def auc(score, label):
    order = score.argsort()
    rank = torch.empty_like(score)
    rank[order] = torch.arange(1, len(score) + 1, device=score.device, dtype=score.dtype)
    pos = label.sum()
    return ((rank[label > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))).item()


market = Market()
sites, ads = RateTable(SITES), RateTable(ADS)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scores, labels = [], []
for step in range(STEPS):
    s, a, x, y = market.batch()
    inputs = torch.cat([x, sites.features(s), ads.features(a)], 1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logit = model(inputs).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y)
    if step >= STEPS - 200:
        scores.append(logit.detach().double())
        labels.append(y.double())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sites.update(s, y)
    ads.update(a, y)
    if step % 200 == 0:
        print(f"step {step} logloss {loss.item():.4f}")
print(f"METRIC {100 * auc(torch.cat(scores), torch.cat(labels)):.2f}")
