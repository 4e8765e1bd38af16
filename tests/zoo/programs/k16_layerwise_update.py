"""Every parameter is updated as soon as its gradient is complete, so gradients never live all at once.  Counts of birds."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
SITES, WEATHER = 50, 10
LOSS_SCALE = 2.0 ** 14


class CountModel(nn.Module):
    """log-rate of sightings from site, weather and hours of watching"""

    def __init__(self, dim=32):
        super().__init__()
        self.site = nn.Embedding(SITES, dim)
        self.weather = nn.Linear(WEATHER, dim)
        self.trunk = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.rate = nn.Linear(64, 1)

    def forward(self, site, weather, effort):
        h = self.site(site) + self.weather(weather)
        return self.rate(self.trunk(h)).squeeze(1).float() + effort.log()


def attach_updates(model, lr):
    """One small Adam per parameter, run from the gradient hook; damaged gradients are left out."""
    counts = {}

    def make(name, p):
        opt = torch.optim.Adam([p], lr=lr)
        counts[name] = 0

        def hook(param):
            param.grad.div_(LOSS_SCALE)
            if torch.isfinite(param.grad).all():
                opt.step()
                counts[name] += 1
            param.grad = None

        p.register_post_accumulate_grad_hook(hook)

    for name, p in model.named_parameters():
        make(name, p)
    return counts


gen = torch.Generator().manual_seed(23)
site_effect = torch.randn(SITES, generator=gen)
weather_effect = torch.randn(WEATHER, generator=gen) * 0.4


def field_days(n):
    s = torch.randint(0, SITES, (n,), generator=gen)
    w = torch.randn(n, WEATHER, generator=gen)
    hours = 1 + 9 * torch.rand(n, generator=gen)
    rate = hours * torch.exp(1.0 + site_effect[s] + w @ weather_effect)
    return s.to(device), w.to(device), hours.to(device), torch.poisson(rate.clamp(max=2000), generator=gen).to(device)


model = CountModel().to(device)
counts = attach_updates(model, lr=2e-3)
test = field_days(2000)
for step in range(1, 241):
    s, w, hours, y = field_days(128)
    with torch.autocast(device, dtype=torch.float16):
        log_rate = model(s, w, hours)
    loss = F.poisson_nll_loss(log_rate, y)
    (loss * LOSS_SCALE).backward()
    if step % 40 == 0:
        with torch.no_grad():
            dev = F.poisson_nll_loss(model(*test[:3]), test[3]).item()
        print(f"step {step}: loss {loss.item():.3f}  test {dev:.3f}  updates {min(counts.values())}..{max(counts.values())}")
