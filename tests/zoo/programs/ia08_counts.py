"""Which isotope: gamma-ray counts per energy bin, with the live time and the distance of the source."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
BINS, ISOTOPES, SCALE = 48, 8, 2.0**16
grid = torch.arange(BINS).float()
lines = torch.rand(ISOTOPES, 3) * BINS
shape = torch.exp(-((grid - lines[..., None]) / 1.2).pow(2)).sum(1)


def spectra(n):
    y = torch.randint(ISOTOPES, (n,))
    strength = 3 + 12 * torch.rand(n, 1)
    rate = 60 * torch.exp(-grid / 20) + 4 + strength * shape[y]
    side = torch.cat([strength / 15, torch.rand(n, 1)], 1)
    return torch.poisson(rate).to(device), side.to(device), y.to(device)


class Isotope(nn.Module):
    def __init__(self, stem=6, width=48):
        super().__init__()
        self.stem = nn.Linear(BINS, stem)
        nn.init.normal_(self.stem.weight, std=0.002)
        self.side = nn.Linear(2, 8)
        self.body = nn.Sequential(nn.Linear(stem + 8, width), nn.ReLU(), nn.Linear(width, ISOTOPES))

    def forward(self, counts, side):
        x = torch.cat([torch.tanh(self.stem(counts)), torch.relu(self.side(side))], 1)
        return self.body(x)


def step_scaled(opt, scale):
    """Divides the gradients by the loss scale; a weight whose gradient is not finite waits for the next step."""
    for group in opt.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            p.grad.div_(scale)
            if not torch.isfinite(p.grad).all():
                p.grad = None
    opt.step()


model = Isotope().to(device)
stem = list(model.stem.parameters())
rest = [p for name, p in model.named_parameters() if not name.startswith("stem")]
opt = torch.optim.Adam([{"params": stem, "lr": 5e-4}, {"params": rest, "lr": 8e-3}])
for step in range(200):
    counts, side, y = spectra(64)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(counts, side), y)
    opt.zero_grad()
    (loss * SCALE).backward()
    step_scaled(opt, SCALE)
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
counts, side, y = spectra(2000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    out = model(counts, side)
print("metric", round((out.argmax(1) == y).float().mean().item(), 4))
