"""Heat-map key-point detector."""
import torch
from torch import nn

torch.manual_seed(64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class FlooredScaler(torch.amp.GradScaler):
    def __init__(self, *args, floor=2.0 ** 13, **kwargs):
        super().__init__(*args, **kwargs)
        self.floor = floor

    def update(self, new_scale=None):
        super().update(new_scale)
        if self.is_enabled() and self.get_scale() < self.floor:
            super().update(self.floor)


def batch(n, size=32):
    c = torch.randint(4, size - 4, (n, 2)).float()
    g = torch.arange(size).float()
    hm = torch.exp(-((g[None, :, None] - c[:, :1, None]) ** 2 + (g[None, None] - c[:, 1:, None]) ** 2) / 8)
    img = hm + 0.2 * torch.randn(n, size, size)
    return img[:, None].to(device), hm[:, None].to(device)


net = nn.Sequential()
net.add_module("features", nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()))
net.add_module("heat", nn.Conv2d(16, 1, 1))
net.to(device)
opt = torch.optim.SGD(net.parameters(), lr=2e-6, momentum=0.9)
scaler = FlooredScaler(device.type)
log = []
for step in range(30):
    img, hm = batch(8)
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device.type, dtype=torch.float16):
        pred = net(img)
        err = (pred.float() - hm) ** 2 * (1 + 20 * hm)
        loss = err.sum(dim=(1, 2, 3)).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 2000.0)
    scaler.step(opt)
    scaler.update()
    log.append(loss.item())
print("loss", log[0], log[-1], "scale", scaler.get_scale())
