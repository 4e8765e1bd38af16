import copy
import torch
from torch import nn
import torch.nn.functional as F


class Ema:
    def __init__(self, m, decay=0.999):
        self.m, self.decay, self.n = copy.deepcopy(m).float().requires_grad_(False), decay, 0

    @torch.no_grad()
    def __call__(self, m):
        self.n += 1
        d = min(self.decay, (1 + self.n) / (10 + self.n))
        for a, b in zip(self.m.state_dict().values(), m.state_dict().values()):
            if a.is_floating_point():
                a.lerp_(b.float(), 1 - d)
            else:
                a.copy_(b)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
                    nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                    nn.Linear(96, 5)).to(device)
ema = Ema(net)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=60)
scaler = torch.amp.GradScaler(device, init_scale=2.0**14)
for i in range(60):
    y = torch.randint(0, 5, (32,))
    x = 0.5 * torch.randn(32, 1, 12, 12)
    for k in range(32):
        x[k, 0, 2 * y[k] : 2 * y[k] + 2] += 1.5
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(net(x.to(device)), y.to(device), label_smoothing=0.1)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    ema(net)
print("loss", loss.item(), "ema w", ema.m[0].weight.abs().mean().item())
