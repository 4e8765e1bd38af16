import torch
from torch import nn
import torch.nn.functional as F


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, x, *params):
        ctx.fn = fn
        ctx.save_for_backward(x)
        with torch.no_grad():
            return fn(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            y = ctx.fn(x)
        ps = [p for p in ctx.fn.parameters()]
        gs = torch.autograd.grad(y, [x, *ps], grad.to(y.dtype))
        return (None, *gs)


class EnergyBlock(nn.Module):
    """Spectral energy; too large for fp16, so it runs in FP32."""

    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        s = self.proj(x) * 100
        e = s * s
        return torch.log1p(e.mean(-1, keepdim=True)) * x


class Model(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp, self.energy, self.out = nn.Linear(20, d), EnergyBlock(d), nn.Linear(d, 4)

    def forward(self, x):
        h = 4 * F.gelu(self.inp(x))
        with torch.autocast(x.device.type, enabled=False):
            h = Recompute.apply(self.energy, h.float(), *self.energy.parameters())
        return self.out(h)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = Model().to(device)
opt = torch.optim.Adam(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
W = torch.randn(20, 4)
for i in range(60):
    x = torch.randn(64, 20)
    y = (x @ W).argmax(-1)
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(net(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print("loss", loss.item(), "scale", scaler.get_scale())
