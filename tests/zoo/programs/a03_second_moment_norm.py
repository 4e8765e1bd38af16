import torch
from torch import nn


class RunningRMS(nn.Module):
    """Divides by the RMS of the batch in training and by a running one in evaluation."""

    def __init__(self, n, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(n))
        self.register_buffer("running_ms", torch.ones(n))

    def forward(self, x):
        if self.training:
            scale = x.detach().abs().amax(0).float().clamp(min=1e-3)
            ms = (x.float() / scale).square().mean(0) * scale.square()
            self.running_ms = (1 - self.momentum) * self.running_ms + self.momentum * (x * x).detach().mean(0)
        else:
            ms = self.running_ms
        return x.float() * torch.rsqrt(ms + 1e-6) * self.weight


torch.manual_seed(0)
if torch.cuda.is_available():
    device = "cuda"
else:
    device = "cpu"
model = nn.Sequential(nn.Linear(12, 48), RunningRMS(48), nn.ReLU(), nn.Linear(48, 3)).to(device)
opt = torch.optim.Adam(model.parameters(), 1e-3)
scaler = torch.cuda.amp.GradScaler()
mix = torch.randn(12, 3)


def data(n):
    x = torch.randn(n, 12)
    return (x * 1000).to(device), (x @ mix).argmax(1).to(device)


for step in range(60):
    x, y = data(64)
    with torch.cuda.amp.autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
model.eval()
with torch.no_grad(), torch.cuda.amp.autocast():
    x, y = data(512)
    acc = (model(x).argmax(1) == y).float().mean().item()
print(f"loss {loss.item():.3f} accuracy {acc:.3f}")
