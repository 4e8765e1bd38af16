"""Fit coloured Gaussians to a picture. The rasteriser has its own backward and keeps its footprint in half to save memory."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(12)
SIDE, COUNT = 40, 70
PIXEL = 1000.0 / SIDE


class Footprint(torch.autograd.Function):
    """weight[p, n] = exp(-|A_n (x_p - c_n)|^2 / 2) with A = diag(1 / radius) turned by an angle"""

    @staticmethod
    def forward(ctx, centre, log_radius, angle, pixels):
        d = pixels[:, None] - centre[None]
        c, s = angle.cos(), angle.sin()
        u = (d[..., 0] * c + d[..., 1] * s) * torch.exp(-log_radius[:, 0])
        v = (d[..., 1] * c - d[..., 0] * s) * torch.exp(-log_radius[:, 1])
        w = torch.exp(-0.5 * (u * u + v * v))
        ctx.save_for_backward(w.half(), u.clamp(-200, 200).half(), v.clamp(-200, 200).half(), log_radius, c, s)
        return w

    @staticmethod
    def backward(ctx, g):
        w, u, v, log_radius, c, s = ctx.saved_tensors
        w, u, v = w.float(), u.float(), v.float()
        a, b = torch.exp(-log_radius[:, 0]), torch.exp(-log_radius[:, 1])
        gu, gv = -g.float() * w * u, -g.float() * w * v
        cx = -(gu * c * a - gv * s * b).sum(0)
        cy = -(gu * s * a + gv * c * b).sum(0)
        radius = torch.stack([-(gu * u).sum(0), -(gv * v).sum(0)], 1)
        turn = (gu * v * a / b - gv * u * b / a).sum(0)
        return torch.stack([cx, cy], 1), radius, turn, None


class Print(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.rand(COUNT, 2) * 1000)
        self.log_radius = nn.Parameter(torch.full((COUNT, 2), 70.0).log() + 0.2 * torch.randn(COUNT, 2))
        self.angle = nn.Parameter(torch.randn(COUNT) * 0.5)
        self.colour = nn.Parameter(0.1 * torch.randn(COUNT, 3))
        self.paper = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, pixels):
        w = Footprint.apply(self.centre, self.log_radius, self.angle, pixels)
        return w @ self.colour + self.paper


def picture():
    y, x = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="ij")
    sky = torch.stack([0.4 + 0.3 * y, 0.55 + 0.2 * y, 0.9 - 0.2 * y], -1)
    sun = torch.exp(-(((x - 0.7) ** 2 + (y - 0.25) ** 2) / 0.01))[..., None] * torch.tensor([0.5, 0.35, -0.4])
    hill = torch.sigmoid((y - 0.6 - 0.12 * torch.sin(7 * x)) * 40)[..., None]
    return sky * (1 - hill) + sun * (1 - hill) + hill * torch.tensor([0.15, 0.4, 0.12])


image = picture().reshape(-1, 3).to(device)
i = torch.arange(SIDE, dtype=torch.float32) * PIXEL + PIXEL / 2
pixels = torch.cartesian_prod(i, i).flip(1).to(device)
net = Print().to(device)
opt = torch.optim.Adam([{"params": [net.centre], "lr": 5.0}, {"params": [net.log_radius, net.angle], "lr": 2e-2},
                        {"params": [net.colour, net.paper], "lr": 1e-2}])
scaler = torch.amp.GradScaler(device)
for step in range(150):
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.float16):
        out = net(pixels)
        loss = (out.float() - image).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 30 == 0 or step == 149:
        print(f"step {step:3d} loss {loss.item():.6f} PSNR {-10 * torch.log10(loss).item():.2f} dB")
