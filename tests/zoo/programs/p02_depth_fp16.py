# Monocular depth (disparity regression) for a small robot camera. The on-board GPU has no bf16, so autocast uses fp16.
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
H, W, B, STEPS = 32, 40, 8, 120


def scene(n, gen):
    """Ground plane plus boxes; returns image and inverse depth (1/m, 2 m to 60 m)."""
    row = torch.linspace(0, 1, H)[:, None].expand(H, W)
    disp = (0.016 + 0.10 * row).repeat(n, 1, 1, 1)
    image = 0.05 * torch.randn(n, 1, H, W, generator=gen) + row
    for i in range(n):
        for _ in range(3):
            h, w = torch.randint(5, 14, (2,), generator=gen).tolist()
            y = int(torch.randint(0, H - h, (1,), generator=gen))
            x = int(torch.randint(0, W - w, (1,), generator=gen))
            d = 0.05 + 0.25 * torch.rand((), generator=gen).item()
            disp[i, 0, y:y + h, x:x + w] = d
            image[i, 0, y:y + h, x:x + w] = 1.0 + 5 * d + 0.05 * torch.randn(h, w, generator=gen)
    return image, disp


class Down(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Up(nn.Module):
    def __init__(self, cin, skip, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin + skip, cout, 3, padding=1)

    def forward(self, x, skip):
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return F.relu(self.conv(torch.cat([x, skip], 1)))


class DepthNet(nn.Module):
    MAX_DISP = 0.5

    def __init__(self, ch=8):
        super().__init__()
        self.stem = nn.Conv2d(1, ch, 3, padding=1)
        self.down1 = Down(ch, 2 * ch)
        self.down2 = Down(2 * ch, 2 * ch)
        self.down3 = Down(2 * ch, 2 * ch)
        self.up3 = Up(2 * ch, 2 * ch, 2 * ch)
        self.up2 = Up(2 * ch, 2 * ch, 2 * ch)
        self.up1 = Up(2 * ch, ch, ch)
        self.disp = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x):
        s = F.relu(self.stem(x))
        a = self.down1(s)
        b = self.down2(a)
        c = self.down3(b)
        y = self.up1(self.up2(self.up3(c, b), a), s)
        return self.MAX_DISP * torch.sigmoid(self.disp(y))


def smoothness(disp, image):
    gx = (disp[..., 1:] - disp[..., :-1]).abs() * torch.exp(-(image[..., 1:] - image[..., :-1]).abs())
    gy = (disp[..., 1:, :] - disp[..., :-1, :]).abs() * torch.exp(-(image[..., 1:, :] - image[..., :-1, :]).abs())
    return gx.mean() + gy.mean()


torch.manual_seed(17)
gen = torch.Generator().manual_seed(170)
net = DepthNet().to(device)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
for step in range(STEPS):
    image, disp = (t.to(device) for t in scene(B, gen))
    with torch.autocast(device, dtype=torch.float16):
        pred = net(image).float()
        loss = F.mse_loss(pred, disp) + 1e-4 * smoothness(pred, image)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 20 == 0:
        print(f"{step:4d}  loss {loss.item():.6f}")

with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    image, disp = (t.to(device) for t in scene(32, torch.Generator().manual_seed(4)))
    pred = net(image).float()
print(f"val rmse {F.mse_loss(pred, disp).sqrt().item():.5f} 1/m")
