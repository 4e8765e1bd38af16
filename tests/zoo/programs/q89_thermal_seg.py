"""Segmentation of warm leaks in thermal frames (brightness temperature in units of 100 K)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"


def frames(n, size=20):
    """Ambient temperature with a slow gradient and pixel noise; leaks are faintly warmer and smoother."""
    g = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(g, g, indexing="ij")
    ambient = 2.7 + 0.4 * torch.rand(n, 1, 1)
    slope = 0.02 * torch.randn(n, 2, 1, 1)
    cx, cy = 1.4 * torch.rand(2, n, 1, 1) - 0.7
    a, b = 0.2 + 0.4 * torch.rand(2, n, 1, 1)
    mask = (((x - cx) / a) ** 2 + ((y - cy) / b) ** 2 < 1).float()
    img = ambient + slope[:, 0] * x + slope[:, 1] * y + 0.05 * mask + 0.03 * torch.randn(n, size, size)
    return img[:, None], mask[:, None]


class LeanInstanceNorm(torch.autograd.Function):
    """Instance norm with affine and ReLU in one; keeps only the normalized map and a factor for each channel."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        mean = x.mean((2, 3), keepdim=True)
        var = (x * x).mean((2, 3), keepdim=True) - mean * mean
        inv = (var.clamp(min=0) + 1e-5).rsqrt()
        norm = (x - mean) * inv
        out = norm * weight.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)
        ctx.save_for_backward(norm.to(x.dtype), inv, weight, out > 0)
        return out.clamp(min=0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        norm, inv, weight, on = ctx.saved_tensors
        grad, norm = grad.float() * on, norm.float()
        dw, db = (grad * norm).sum((0, 2, 3)), grad.sum((0, 2, 3))
        dn = grad * weight.view(1, -1, 1, 1)
        dx = (dn - dn.mean((2, 3), keepdim=True) - norm * (dn * norm).mean((2, 3), keepdim=True)) * inv
        return dx, dw, db


class ConvIN(nn.Module):
    def __init__(self, i, o, dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=dilation, dilation=dilation, padding_mode="replicate", bias=False)
        self.weight, self.bias = nn.Parameter(torch.ones(o)), nn.Parameter(torch.zeros(o))

    def forward(self, x):
        return LeanInstanceNorm.apply(self.conv(x), self.weight, self.bias)


class SegNet(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.stem = ConvIN(1, ch)
        self.mid = nn.Sequential(ConvIN(ch, ch, 2), ConvIN(ch, ch, 3))
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        h = self.stem(x)
        return self.out(h + self.mid(h))


def dice(logit, mask):
    p = torch.sigmoid(logit.float())
    return (1 - (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()


model = SegNet().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for step in range(400):
    img, mask = (t.to(device) for t in frames(6))
    with torch.autocast("cuda", dtype=torch.float16):
        logit = model(img)
        loss = F.binary_cross_entropy_with_logits(logit, mask) + dice(logit, mask)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 80 == 0:
        print(f"step {step:4d}  loss {loss.item():.4f}")

img, mask = (t.to(device) for t in frames(150))
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    hit = model(img).float() > 0
iou = (hit & (mask > 0)).sum((1, 2, 3)) / (hit | (mask > 0)).sum((1, 2, 3)).clamp(min=1)
print("mean IoU over held-out frames")
print("METRIC", round(100 * iou.mean().item(), 2))
