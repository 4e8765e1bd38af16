"""GAN for grain-size curves of river sand: makes sieve profiles that look like the ones of the survey."""
import torch
from torch import nn

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
SIEVES, NOISE = 16, 8
axis = torch.linspace(-2, 2, SIEVES, device=device)


def survey(n):
    """Measured curves: a peak with a random place, width and a slight coarse tail."""
    place = 0.5 + 0.3 * torch.randn(n, 1, device=device)
    width = 0.7 + 0.1 * torch.randn(n, 1, device=device)
    tail = 0.3 + 0.1 * torch.rand(n, 1, device=device)
    return 2 * torch.exp(-(((axis - place) / width) ** 2)) + tail * torch.sigmoid(3 * axis)


def generator():
    return nn.Sequential(
        nn.Linear(NOISE, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, SIEVES)
    )


class FakeDetector(nn.Module):
    """Probability that a curve was made up."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIEVES, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
        self.out = nn.Linear(64, 1)

    def forward(self, curve):
        score = self.out(self.body(curve))
        return torch.sigmoid(score)


def negative_log(p):
    return -torch.log(p + 1e-8).mean()


def train(steps=300, warm=100, batch=64):
    made, judge = generator().to(device), FakeDetector().to(device)
    made_opt = torch.optim.Adam(made.parameters(), lr=1e-3, betas=(0.5, 0.99))
    judge_opt = torch.optim.Adam(judge.parameters(), lr=5e-3, betas=(0.5, 0.99))
    made_scaler, judge_scaler = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for step in range(steps):
        real, noise = survey(batch), torch.randn(batch, NOISE, device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            fake = made(noise)
            judge_loss = negative_log(judge(fake.detach())) + negative_log(1 - judge(real))
        judge_opt.zero_grad(set_to_none=True)
        judge_scaler.scale(judge_loss).backward()
        judge_scaler.step(judge_opt)
        judge_scaler.update()
        if step < warm:  # the detector first learns what made-up curves look like
            continue

        with torch.autocast("cuda", dtype=torch.float16):
            fake = made(torch.randn(batch, NOISE, device=device))
            made_loss = negative_log(1 - judge(fake))
        made_opt.zero_grad(set_to_none=True)
        made_scaler.scale(made_loss).backward()
        made_scaler.step(made_opt)
        made_scaler.update()
    return made


@torch.no_grad()
def distance(made, n=2000):
    """Mean distance between the sorted projections of made and measured curves."""
    lines = torch.randn(SIEVES, 64, device=device)
    lines = lines / lines.norm(dim=0)
    a, b = survey(n) @ lines, made(torch.randn(n, NOISE, device=device)) @ lines
    return (a.sort(0).values - b.sort(0).values).abs().mean().item()


model = train()
print(f"metric {distance(model):.4f}")
