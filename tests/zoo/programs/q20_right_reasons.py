import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(7)

SIZE, TAG, PENALTY = 32, 7, 2.0


def radiographs(n, agreement):
    """Chest films: an opacity in the lung field, and the laterality marker of the scanner in the corner."""
    y = torch.randint(0, 2, (n,))
    film = 0.5 * torch.randn(n, 1, SIZE, SIZE)
    grid = torch.arange(SIZE).float()
    cx, cy = 11 + 12 * torch.rand(n, 1, 1), 13 + 10 * torch.rand(n, 1, 1)
    blob = torch.exp(-((grid[None, :, None] - cy) ** 2 + (grid[None, None, :] - cx) ** 2) / 16.0)
    film[:, 0] += 1.6 * y[:, None, None] * blob
    marked = torch.where(torch.rand(n) < agreement, y, 1 - y).float()
    film[:, 0, :TAG, :TAG] += 2.0 * marked[:, None, None]
    return film, y


class FilmNet(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.c1 = nn.Conv2d(1, width, 5, stride=2, padding=2)
        self.c2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.fc = nn.Linear(2 * width * 16, 2)

    def forward(self, x):
        h = F.softplus(self.c1(x))
        h = F.softplus(self.c2(h))
        return self.fc(F.avg_pool2d(h, 2).flatten(1))


outside = torch.zeros(1, 1, SIZE, SIZE, device=device)
outside[..., : TAG + 3, : TAG + 3] = 1.0

net = FilmNet().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)

for step in range(100):
    film, y = (t.to(device) for t in radiographs(24, agreement=0.97))
    film.requires_grad_(True)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        log_p = F.log_softmax(net(film), dim=1)
        answer = F.nll_loss(log_p, y)
        saliency, = torch.autograd.grad(log_p.mean() / film.numel(), film, create_graph=True)
        power = (saliency.float() * film.numel()) ** 2
        reason = (power * outside).sum() / (power.sum() + 1e-10)
        loss = answer + PENALTY * reason
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 99:
        print(f"step {step:3d}  answer {answer.item():.4f}  saliency outside the lungs {reason.item():.3f}")

film, y = (t.to(device) for t in radiographs(400, agreement=0.5))
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    accuracy = (net(film).argmax(1) == y).float().mean().item()
print(f"accuracy at another hospital {accuracy:.3f}")
