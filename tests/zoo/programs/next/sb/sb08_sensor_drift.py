"""Drift monitor for a chemical plant: Wasserstein critic between reference and current sensor features."""
import torch
from torch import nn

torch.manual_seed(6)
device = "cuda" if torch.cuda.is_available() else "cpu"
SENSORS, FEATURES, BATCH, STEPS, PENALTY = 20, 48, 128, 250, 10.0

correlation = torch.randn(SENSORS, SENSORS) / SENSORS ** 0.5
shift = 0.7 * torch.randn(SENSORS) / SENSORS ** 0.5


def reference(count):
    return (torch.randn(count, SENSORS) @ correlation).to(device)


def current(count):
    """After some months: a few sensors drifted and the spread grew."""
    return ((1.15 * torch.randn(count, SENSORS) + 2 * shift) @ correlation + shift).to(device)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )
        nn.init.zeros_(self.net[-1].weight)  # starts as the constant critic
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, features):
        return self.net(features).squeeze(-1)


encoder = nn.Sequential(nn.Linear(SENSORS, FEATURES), nn.Tanh()).to(device).requires_grad_(False)
critic = Critic().to(device)
optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)


def gradient_penalty(real, fake):
    mix = torch.rand(len(real), 1, device=device, dtype=real.dtype)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        score = critic(between)
    (slope,) = torch.autograd.grad(score.float().sum(), between, create_graph=True)
    norm = (slope.pow(2).sum(dim=1) + 1e-12).sqrt()
    return (norm - 1).pow(2).mean()


for step in range(STEPS):
    with torch.autocast("cuda", dtype=torch.float16):
        real, fake = encoder(reference(BATCH)), encoder(current(BATCH))
        distance = critic(fake).float().mean() - critic(real).float().mean()
    penalty = gradient_penalty(real, fake)
    loss = PENALTY * penalty - distance
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} distance {distance.item():.4f} penalty {penalty.item():.4f}")

# how well the critic tells batches of 8 readings apart (area under the curve)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    before = critic(encoder(reference(8192))).float().view(-1, 8).mean(1)
    after = critic(encoder(current(8192))).float().view(-1, 8).mean(1)
wins = (after[:, None] > before).float() + 0.5 * (after[:, None] == before).float()
print(f"metric {wins.mean().item():.4f}")
