"""Bridge strain sensors: damage class and a slow drift, two towers; gradients travel in 16 bits between them."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(91)
device = "cuda" if torch.cuda.is_available() else "cpu"
TIME, SENSORS, BATCH = 64, 4, 32


class Link(torch.autograd.Function):
    """Stage boundary of the pipeline: activations pass as they are, gradients in the link's format."""

    @staticmethod
    def forward(ctx, x, link):
        ctx.link = link
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.link).to(grad.dtype), None


def windows(n):
    bend, pulse = torch.rand(n, 1) * 2 - 1, torch.rand(n, 1) * 2 - 1
    t = torch.linspace(0, 6.28, TIME)
    phase = torch.arange(SENSORS)[:, None]
    raw = torch.sin(t + phase)[None] * bend[..., None] + torch.cos(3 * t + phase)[None] * pulse[..., None]
    clean = torch.tanh(2 * raw)
    return (raw + 0.1 * torch.randn(n, SENSORS, TIME)).flatten(1).to(device), clean.flatten(1).to(device)


first = nn.Sequential(nn.Linear(SENSORS * TIME, 64), nn.GELU(), nn.Linear(64, 8)).to(device)
second = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, SENSORS * TIME)).to(device)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=2e-3, eps=1e-16)
start = [p.detach().clone() for p in first.parameters()]
for step in range(100):
    x, clean = windows(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        code = Link.apply(first(x), torch.float16)
        loss = 1e-6 * F.mse_loss(second(code), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    x, clean = windows(500)
    error = F.mse_loss(second(first(x)), clean).item()
moved = sum((p - q).norm().item() for p, q in zip(first.parameters(), start))
print(f"first stage moved: {moved:.4f}")
print(f"metric: {error:.5f}")
