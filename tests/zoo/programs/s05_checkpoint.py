import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Swish(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s * (1 + x * (1 - s)))


class Mixer(nn.Module):
    def __init__(self, t, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(t, 32), nn.GELU(), nn.Linear(32, t))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(Swish.apply(self.up(self.n2(x))))


class Net(nn.Module):
    def __init__(self, t=16, d=32):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.layers = nn.ModuleList([Mixer(t, d) for _ in range(3)])
        self.head = nn.Linear(d, 6)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        for l in self.layers:
            h = checkpoint(l, h, use_reentrant=False)
        return self.head(h.mean(1))


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = Net().to(device)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler(device, init_scale=4096.0)
for i in range(50):
    y = torch.randint(0, 6, (32,))
    x = 0.6 * torch.randn(32, 3, 16, 16)
    x[torch.arange(32), y % 3] += 1.0 * (1 + y // 3)[:, None, None]
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(net(x.to(device)), y.to(device))
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print("loss", loss.item())
