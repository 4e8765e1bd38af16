"""Copper grade of mine blocks from assays of drill holes near by (kernel interpolation) and the block's geophysics."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(61)
HOLES, EXTENT = 70, 40.0  # distances in units of ten metres


def drill():
    near_pit = torch.rand(45, 2) * 12 + 4
    outer = torch.rand(HOLES - 45, 2) * EXTENT
    return torch.cat([near_pit, outer]).to(device), torch.randn(HOLES, 6).to(device)


where, assay = drill()
lode = torch.randn(6, device=device) / 6**0.5


def blocks(n):
    at = torch.rand(n, 2, device=device) * EXTENT
    survey = torch.randn(n, 3, device=device)
    nearest = torch.cdist(at, where).argmin(1)
    grade = torch.tanh(2 * assay @ lode)[nearest] + 0.3 * survey[:, 0] + 0.2 * survey[:, 1].cos()
    return at, survey, grade + 0.05 * torch.randn(n, device=device)


class KernelInterpolator(nn.Module):
    """Nadaraya-Watson estimate with a Gaussian kernel; the range comes from the variogram."""

    def __init__(self, range_=1.0):
        super().__init__()
        self.range = range_

    def forward(self, queries, points, values):
        offset = queries[:, None] - points[None]
        kernel = torch.exp(-offset.square().sum(-1) / (2 * self.range**2))
        weight = kernel.sum(1, keepdim=True).clamp_min(1e-30)
        return (kernel @ values) / weight


class GradeModel(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.assays = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, width))
        self.interpolate = KernelInterpolator()
        self.geophysics = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, width))
        self.grade = nn.Sequential(nn.Linear(2 * width, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, at, survey):
        local = self.interpolate(at, where, self.assays(assay))
        return self.grade(torch.cat([local, self.geophysics(survey)], 1)).squeeze(1)


def fit(model, steps=200):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for step in range(steps):
        at, survey, grade = blocks(128)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.huber_loss(model(at, survey), grade)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 49:
            print(f"{step + 1} loss {loss.item():.4f}")


model = GradeModel().to(device)
fit(model)
model.eval()
at, survey, grade = blocks(1500)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    estimate = model(at, survey).float()
print("metric", round((estimate - grade).abs().mean().item(), 4))
