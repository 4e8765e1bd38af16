import copy, torch, torch.nn as nn, torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1),
                                  nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1))

    def forward(self, x):
        return x + self.body(x)


class Denoiser(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.temb = nn.Linear(1, c)
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.blocks = nn.ModuleList([ResBlock(c) for _ in range(2)])
        self.out = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x, t):
        h = self.stem(x) + self.temb(t[:, None])[:, :, None, None]
        for b in self.blocks:
            h = b(h)
        return self.out(h)


class EMA:
    def __init__(self, model, decay=0.9997):
        # half the memory: it is only used for sampling
        self.shadow = copy.deepcopy(model).half().eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.shadow.parameters(), model.parameters()):
            e.lerp_(p.to(e.dtype), 1 - self.decay)


def images(n):
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    c = torch.rand(n, 2, 1, 1) - 0.5
    return torch.exp(-8 * ((x - c[:, :1]) ** 2 + (y - c[:, 1:]) ** 2)) * 2 - 1


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Denoiser().to(device)
ema = EMA(model)
start = [p.detach().float().clone() for p in ema.shadow.parameters()]
opt = torch.optim.Adam(model.parameters(), 2e-4)
scaler = torch.amp.GradScaler(device.type)
for it in range(100):
    x0 = images(16).to(device)
    t = torch.rand(16, device=device)
    eps = torch.randn_like(x0)
    a = torch.cos(t * 1.5)[:, None, None, None]
    xt = a * x0 + (1 - a * a).sqrt() * eps
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.mse_loss(model(xt, t), eps)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    ema.update(model)
mv = sum((p.float() - s).abs().sum().item() for p, s in zip(ema.shadow.parameters(), start))
ch = sum((p.float() != s).sum().item() for p, s in zip(ema.shadow.parameters(), start))
print(f"loss {loss.item():.4f} ema moved {mv:.6f}, elements that changed {ch}/{sum(s.numel() for s in start)}")
