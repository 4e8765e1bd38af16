"""Denoising score matching for a 1-D phi^4 lattice field sampled by Metropolis, with our own loss scaling."""
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

SITES, SIGMA, STEPS, BATCH = 12, 0.35, 1200, 128


def action(phi):
    kinetic = 0.5 * (phi - phi.roll(1, 1)).pow(2).sum(1)
    return kinetic + (0.5 * (phi**2 - 1) ** 2).sum(1)


def metropolis(chains, sweeps):
    """Independent chains; even and odd sites are updated in turn."""
    phi = torch.randn(chains, SITES)
    site = torch.arange(SITES)
    for sweep in range(2 * sweeps):
        mask = (site % 2 == sweep % 2).float()
        local = lambda f: 0.5 * ((f - phi.roll(1, 1)) ** 2 + (f - phi.roll(-1, 1)) ** 2) + 0.5 * (f**2 - 1) ** 2
        trial = phi + torch.randn(chains, SITES)
        accept = (torch.rand(chains, SITES) < torch.exp(local(phi) - local(trial))).float() * mask
        phi = phi + accept * (trial - phi)
    return phi.to(device)


class ScaledOptimizer:
    """Scales the loss, divides the gradients, leaves a step out on overflow."""

    def __init__(self, optimizer, parameters, clip):
        self.optimizer, self.parameters, self.clip = optimizer, list(parameters), clip
        self.power, self.clean, self.left_out = 26, 0, 0

    def backward(self, loss):
        (loss * 2.0**self.power).backward()

    def step(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm()
        if not torch.isfinite(norm):
            self.power, self.clean, self.left_out = self.power - 2, 0, self.left_out + 1
            self.optimizer.zero_grad()
            return
        norm = norm / 2.0**self.power
        factor = min(1.0, self.clip / (norm.item() + 1e-6)) / 2.0**self.power
        for p in self.parameters:
            p.grad.mul_(factor)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clean += 1
        if self.clean == 400:
            self.power, self.clean = self.power + 1, 0


class Score(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SITES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, SITES)
        )

    def forward(self, phi):
        return self.body(phi) - self.body(-phi)


field, field_test = metropolis(6000, 60), metropolis(1000, 60)
noise_test = torch.randn(field_test.shape).to(device)

model = Score().to(device)
base = torch.optim.Adam(model.parameters(), lr=3e-3)
optimizer = ScaledOptimizer(base, model.parameters(), clip=1.0)
schedule = torch.optim.lr_scheduler.LambdaLR(base, lambda step: max(0.02, 1 - step / STEPS))
print(f"mean action {action(field).mean().item():.3f}")
for step in range(STEPS):
    clean = field[torch.randint(len(field), (BATCH,)).to(device)]
    noise = torch.randn(clean.shape).to(device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(clean + SIGMA * noise), -noise)
    optimizer.backward(loss)
    optimizer.step()
    schedule.step()
    if step % 240 == 239:
        print(f"step {step} loss {loss.item():.4f} scale 2^{optimizer.power} left out {optimizer.left_out}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(field_test + SIGMA * noise_test), -noise_test)
print("METRIC", loss.item())
