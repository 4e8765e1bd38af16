import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
K, SIZE = 4, 24


def make_images(n):
    imgs = 0.1 * torch.randn(n, 1, SIZE, SIZE)
    centers = torch.zeros(n, K, 2)
    for i in range(n):
        for k, (oy, ox) in enumerate([(0, 0), (0, 12), (12, 0), (12, 12)]):
            y, x = oy + int(torch.randint(2, 10, (1,))), ox + int(torch.randint(2, 10, (1,)))
            imgs[i, 0, y - 1:y + 2, x - 1:x + 2] += 1.0
            centers[i, k] = torch.tensor([x, y]) / SIZE
    return imgs, centers


class CenterRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.fc = nn.Sequential(nn.Linear(16 * 144, 64), nn.ReLU(), nn.Linear(64, 2 * K))

    def forward(self, x):
        return self.fc(self.features(x).flatten(1)).view(-1, K, 2)


off_diag = 1.0 - torch.eye(K, device=device)


def repulsion(centers, margin=0.25):
    dx = centers[:, :, None, 0] - centers[:, None, :, 0]
    dy = centers[:, :, None, 1] - centers[:, None, :, 1]
    dist = torch.sqrt(dx * dx + dy * dy + 1e-8)
    return (F.relu(margin - dist) * off_diag).sum() / (len(centers) * K * (K - 1))


imgs, centers = make_images(512)
imgs, centers = imgs.to(device), centers.to(device)
model = CenterRegressor().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(150):
    idx = torch.randint(0, 448, (32,), device=device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        pred = model(imgs[idx])
        fit = F.smooth_l1_loss(pred, centers[idx], beta=0.05)
        rep = repulsion(pred)
        loss = fit + 0.1 * rep
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 30 == 0 or step == 149:
        print(f"step {step:3d} fit {fit.item():.4f} repulsion {rep.item():.4f}")

with torch.no_grad():
    err = (model(imgs[448:]) - centers[448:]).abs().mean().item() * SIZE
print(f"validation error {err:.2f} px")
