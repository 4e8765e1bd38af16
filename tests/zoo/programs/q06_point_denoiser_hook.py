import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(31)

CLOUDS, POINTS, T, WIDTH = 48, 256, 50, 24
DENOISE_COEF, KIND_COEF, FEATURE_CLIP = 0.0005, 0.02, 0.01

betas = torch.linspace(1e-3, 0.12, T)
alpha_bar = torch.cumprod(1 - betas, 0).to(device)


def clouds(n=CLOUDS):
    a = torch.rand(n, POINTS) * 2 * math.pi
    kind = torch.randint(0, 2, (n,))
    circle = torch.stack([a.cos(), a.sin()], 2)
    eight = torch.stack([a.sin(), (3 * a).sin() * 0.7], 2)
    xy = torch.where(kind[:, None, None] == 0, circle, eight)
    return (xy + 0.02 * torch.randn(n, POINTS, 2)).to(device), kind.to(device)


class PointDenoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2 + 8 + 2, WIDTH)
        self.mid = nn.Linear(WIDTH, WIDTH)
        self.mid2 = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 2)
        self.kind = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 16))
        self.kind_out = nn.Linear(16, 2)

    def forward(self, x, t, kind, grad_hook=None):
        f = 2.0 ** torch.arange(4, device=x.device)
        e = t.float()[:, None] / T * f
        cond = torch.cat([e.sin(), e.cos(), F.one_hot(kind, 2).float()], 1)
        h = torch.cat([x, cond[:, None].expand(-1, x.size(1), -1)], 2)
        h = F.silu(self.lift(h))
        h = h + F.silu(self.mid(h))
        h = self.mid2(h)
        if grad_hook is not None and h.requires_grad:
            h.register_hook(grad_hook)
        logits = self.kind_out(self.kind(x).amax(1))
        return self.head(F.silu(h)), logits


model = PointDenoiser().to(device)
nn.init.normal_(model.head.weight, 0.0, 0.02)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")


def clip_feature_grad(grad):
    scale = scaler.get_scale()
    grad = grad / scale
    return grad.clamp(-FEATURE_CLIP, FEATURE_CLIP) * scale


tail = []
for step in range(160):
    x0, kind = clouds()
    t = torch.randint(0, T, (CLOUDS,), device=device)
    noise = torch.randn_like(x0)
    ab = alpha_bar[t][:, None, None]
    xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise

    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        eps, logits = model(xt, t, kind, clip_feature_grad)
        denoise = F.mse_loss(eps, noise)
        kind_loss = F.cross_entropy(logits, kind)
        loss = DENOISE_COEF * denoise + KIND_COEF * kind_loss
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()

    if step >= 140:
        tail.append(denoise.item())
    if step % 30 == 0 or step == 159:
        print(f"step {step} denoise {denoise.item():.4f} kind {kind_loss.item():.4f}")
print(f"final denoise {sum(tail) / len(tail):.4f}")
