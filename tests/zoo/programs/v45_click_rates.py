"""Click-through-rate model on a stream of ad impressions, with historical click rates as online features."""
import torch
from torch import nn

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
ADS, SITES, BATCH, STEPS = 400, 60, 1024, 350

popularity = 1.0 / torch.arange(1, ADS + 1).float() ** 0.8
order = torch.randperm(ADS)
ad_quality = (1.3 * torch.randn(ADS) - 1.8).to(device)
site_quality = (0.5 * torch.randn(SITES)).to(device)
taste = torch.randn(8, device=device) * 0.25


def impressions(n):
    """Draw impressions: the ad shown, the site it is shown on, what is known of the user, the click."""
    ad = order[torch.multinomial(popularity, n, replacement=True)].to(device)
    site = torch.randint(SITES, (n,), device=device)
    user = torch.randn(n, 8, device=device)
    p = torch.sigmoid(ad_quality[ad] + site_quality[site] + user @ taste)
    return ad, site, user, torch.bernoulli(p)


class History(nn.Module):
    """Views and clicks of each key so far, and the smoothed click rate that follows from them."""

    def __init__(self, keys, prior=0.2, strength=20.0):
        super().__init__()
        self.prior, self.strength = prior, strength
        self.register_buffer("views", torch.zeros(keys, dtype=torch.bfloat16))
        self.register_buffer("clicks", torch.zeros(keys, dtype=torch.bfloat16))

    def forward(self, key):
        views, clicks = self.views[key].float(), self.clicks[key].float()
        rate = (clicks + self.prior * self.strength) / (views + self.strength)
        return torch.logit(rate.clamp(1e-3, 1 - 1e-3))

    @torch.no_grad()
    def update(self, key, click):
        self.views.index_add_(0, key, torch.ones_like(click).to(self.views.dtype))
        self.clicks.index_add_(0, key, click.to(self.clicks.dtype))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.by_ad, self.by_site = History(ADS), History(SITES)
        self.body = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ad, site, user):
        x = torch.cat([self.by_ad(ad)[:, None], self.by_site(site)[:, None], user], 1)
        return self.body(x).squeeze(1)


def auc(score, label):
    rank = score.argsort().argsort().double() + 1
    pos = label.sum().double()
    neg = len(label) - pos
    return ((rank[label > 0.5].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


model = Model().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
loss_fn = nn.BCEWithLogitsLoss()
mean_loss = 0.0
for step in range(1, STEPS + 1):
    ad, site, user, click = impressions(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = loss_fn(model(ad, site, user), click)
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.by_ad.update(ad, click)
    model.by_site.update(site, click)
    mean_loss += loss.item() / 50
    if step % 50 == 0:
        print(f"step {step} log loss {mean_loss:.4f}")
        mean_loss = 0.0

ad, site, user, click = impressions(40000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    score = model(ad, site, user).float()
print("METRIC", round(auc(score, click), 4))
