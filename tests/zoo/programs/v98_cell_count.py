"""Microscopy: counts the cells in a field of view and segments them, with one network."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 24


def fields(n):
    """Images, masks and how many cells the whole well holds."""
    seeds = (torch.rand(n, 1, SIZE, SIZE) < 0.02 + 0.06 * torch.rand(n, 1, 1, 1)).float()
    mask = F.max_pool2d(seeds, 3, stride=1, padding=1)
    image = mask + 0.5 * torch.randn(n, 1, SIZE, SIZE)
    return image.to(device), mask.to(device), (400 * seeds.sum((1, 2, 3))).to(device)


class CellNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.density = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))
        self.mask_head = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
                                       nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, image):
        count = self.density(self.trunk(image)).sum((1, 2, 3))
        return count, self.mask_head(image)


net = CellNet().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")
for step in range(70):
    image, mask, count = fields(8)
    with torch.autocast("cuda", dtype=torch.float16):
        predicted, logits = net(image)
        loss = F.mse_loss(predicted, count) + F.binary_cross_entropy_with_logits(logits, mask)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step + 1} loss {loss.item():.1f}")

with torch.no_grad():
    image, mask, count = fields(64)
    predicted, logits = net(image)
    entropy = F.binary_cross_entropy_with_logits(logits, mask).item()
print(f"count error: {(predicted - count).abs().mean().item():.1f} scale: {scaler.get_scale()}")
print(f"metric: {entropy:.4f}")
