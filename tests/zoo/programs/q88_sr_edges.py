"""Two-fold super-resolution of scanned line drawings, pixel loss and edge loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"


def drawings(n, size=24, strokes=3):
    """White strokes on black, anti-aliased."""
    y, x = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    img = torch.zeros(n, size, size)
    for _ in range(strokes):
        p, q = size * torch.rand(2, n, 2, 1, 1)
        d = q - p
        t = (((x - p[:, 0]) * d[:, 0] + (y - p[:, 1]) * d[:, 1]) / (d**2).sum(1).clamp(min=1)).clamp(0, 1)
        dist = ((x - p[:, 0] - t * d[:, 0]) ** 2 + (y - p[:, 1] - t * d[:, 1]) ** 2).sqrt()
        img = torch.maximum(img, (1.4 - dist).clamp(0, 1))
    hr = img[:, None]
    return F.avg_pool2d(hr, 2), hr


class EdgeLoss(nn.Module):
    """L1 distance of the gradient magnitudes."""

    def __init__(self, eps=1e-8):
        super().__init__()
        k = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 4
        self.register_buffer("sobel", torch.stack([k, k.t()])[:, None])
        self.eps = eps

    def magnitude(self, img):
        gx, gy = F.conv2d(img, self.sobel, padding=1).chunk(2, 1)
        return torch.sqrt(gx * gx + gy * gy + self.eps)

    def forward(self, sr, hr):
        return F.l1_loss(self.magnitude(sr), self.magnitude(hr))


class SRNet(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.head = nn.Conv2d(1, ch, 3, padding=1)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU())
        self.tail = nn.Sequential(nn.Conv2d(ch, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        h = self.head(x)
        up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return (up + self.tail(h + self.body(h))).clamp(0, 1)


def psnr(model, lr, hr):
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        sr = model(lr).float()
    model.train()
    return (-10 * torch.log10(F.mse_loss(sr, hr))).item(), F.mse_loss(sr, hr).item()


model, edge = SRNet().to(device), EdgeLoss().to(device)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda")
lr_val, hr_val = (t.to(device) for t in drawings(64))
for step in range(450):
    lr, hr = (t.to(device) for t in drawings(8))
    with torch.autocast("cuda", dtype=torch.float16):
        sr = model(lr)
        pixel, lines = F.l1_loss(sr, hr), edge(sr, hr)
        loss = pixel + 0.5 * lines
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 90 == 0:
        print(f"step {step:4d}  pixel {pixel.item():.4f}  edge {lines.item():.4f}  PSNR {psnr(model, lr_val, hr_val)[0]:.2f}")

db, mse = psnr(model, lr_val, hr_val)
print(f"PSNR {db:.2f} dB")
print("METRIC", round(1000 * mse, 3))
