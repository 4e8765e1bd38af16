"""Rigid-plus-residual scene flow for a lidar on a slow robot. Displacements between sweeps are a few centimetres."""
import torch
from torch import nn

torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"
POINTS, STEPS, BLOCKS, WIDTH = 320, 420, 5, 48


class DynamicLossScale:
    """Dynamic loss scaling for our trainer (we cannot use torch.amp.GradScaler with the hand-written optimizers)."""

    def __init__(self, scale=2.0**32, factor=2.0, window=1000):
        self.scale, self.factor, self.window = scale, factor, window
        self.clean = 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def unscale(self, params):
        """Divide the gradients by the scale. Returns False where the step has to be left out."""
        finite, used = True, self.scale
        for p in params:
            p.grad.div_(used)
            if not torch.isfinite(p.grad).all():
                finite = False
                self.scale /= self.factor
        self.clean = self.clean + 1 if finite else 0
        if self.clean == self.window:
            self.scale *= self.factor
            self.clean = 0
        return finite


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h):
        return h + self.down(torch.nn.functional.silu(self.up(self.norm(h))))


class FlowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(7, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH) for _ in range(BLOCKS)))
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, pts, speed, yaw, label):
        n = pts.shape[0]
        h = torch.cat([pts / 8, torch.stack([speed, yaw]).expand(n, 2), label], 1)
        return self.out(self.blocks(self.lift(h))) * 0.05


def sweep(n=POINTS):
    """One pair of sweeps: static world, seen from a moving platform, plus one moving class (people, trolleys)."""
    pts = torch.randn(n, 3) * torch.tensor([8.0, 8.0, 1.0])
    speed, yaw = torch.rand(2)
    moving = (torch.rand(n, 1) < 0.2).float()
    dx = -0.06 * speed + 0.006 * (yaw - 0.5) * pts[:, 1:2]
    dy = -0.006 * (yaw - 0.5) * pts[:, 0:1]
    own = moving * 0.04 * torch.cat([torch.sin(pts[:, 0:1] / 6), torch.cos(pts[:, 1:2] / 6)], 1)
    flow = torch.cat([dx + own[:, :1], dy + own[:, 1:], 0.002 * torch.sin(pts[:, 0:1] / 5)], 1)
    label = torch.cat([moving, 1 - moving], 1)
    return [t.to(device) for t in (pts, speed, yaw, label, flow)]


net = FlowNet().to(device)
params = list(net.parameters())
mom = [torch.zeros_like(p) for p in params]
var = [torch.zeros_like(p) for p in params]
scaling, taken = DynamicLossScale(), 0

for step in range(STEPS):
    *inputs, flow = sweep()
    with torch.autocast("cuda", dtype=torch.float16):
        pred = net(*inputs)
        loss = (pred.float() - flow).square().mean()
    for p in params:
        p.grad = None
    scaling.backward(loss)
    if scaling.unscale(params):
        taken += 1
        lr = 4e-3 * (1 - step / STEPS)
        with torch.no_grad():
            for p, m, v in zip(params, mom, var):
                m.lerp_(p.grad, 0.1)
                v.lerp_(p.grad * p.grad, 0.01)
                m_hat, v_hat = m / (1 - 0.9**taken), v / (1 - 0.99**taken)
                p.sub_(lr * m_hat / (v_hat.sqrt() + 1e-12))
    if step % 70 == 69:
        print(f"{step + 1:4d} loss {loss.item():.3e} scale {scaling.scale:.3g} steps taken {taken}")

err = base = 0.0
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for _ in range(20):
        *inputs, flow = sweep()
        err += (net(*inputs).float() - flow).norm(dim=1).mean().item() / 20
        base += flow.norm(dim=1).mean().item() / 20
print(f"end point error {1000 * err:.2f} mm (no motion: {1000 * base:.2f} mm)")
print(f"METRIC {1000 * err:.3f}")
