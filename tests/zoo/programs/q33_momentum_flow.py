import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
device = "cuda" if torch.cuda.is_available() else "cpu"

POINTS, WIDTH, DEPTH, GAMMA, BATCH, STEPS = 48, 24, 14, 0.6, 8, 120


class MomentumChain(torch.autograd.Function):
    """Runs all blocks keeping only the last state; inputs are rebuilt on the way back."""

    @staticmethod
    def forward(ctx, x, v, blocks, *params):
        ctx.blocks = blocks
        with torch.no_grad():
            for block in blocks:
                v = GAMMA * v + (1 - GAMMA) * block(x)
                x = x + v
        ctx.save_for_backward(x, v)
        return x, v

    @staticmethod
    def backward(ctx, gx, gv):
        x, v = ctx.saved_tensors
        grads = []
        for block in reversed(ctx.blocks):
            with torch.no_grad():
                x = x - v
            inp = x.detach().requires_grad_()
            with torch.enable_grad():
                f = block(inp)
            with torch.no_grad():
                v = (v - (1 - GAMMA) * f.float()) / GAMMA
            gv = gv + gx
            ps = list(block.parameters())
            out = torch.autograd.grad(f, [inp] + ps, ((1 - GAMMA) * gv).to(f.dtype))
            gx = gx + out[0]
            gv = GAMMA * gv
            grads = list(out[1:]) + grads
        return (gx, gv, None, *grads)


class PointBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.local = nn.Linear(width, width)
        self.pool = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        h = torch.tanh(self.local(x) + self.pool(x.mean(1, keepdim=True)))
        return self.out(h)


class ShapeFlow(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(3, WIDTH)
        self.blocks = nn.ModuleList(PointBlock(WIDTH) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, pts):
        x = self.lift(pts).float()
        params = [p for b in self.blocks for p in b.parameters()]
        x, _ = MomentumChain.apply(x, torch.zeros_like(x), list(self.blocks), *params)
        return pts + self.head(x)


def deformed_pair(generator):
    src = F.normalize(torch.randn(BATCH, POINTS, 3, generator=generator), dim=-1)
    amount = 1.5 * src.mean(1, keepdim=True) + 0.8 * src[..., 2:3]
    rot = torch.stack([
        src[..., 0] * amount[..., 2].cos() - src[..., 1] * amount[..., 2].sin(),
        src[..., 0] * amount[..., 2].sin() + src[..., 1] * amount[..., 2].cos(),
        src[..., 2] * (1.0 + 0.5 * src[..., 0]),
    ], -1)
    return src.to(device), rot.to(device)


model = ShapeFlow().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
generator = torch.Generator().manual_seed(9)

recent = []
for step in range(STEPS):
    src, dst = deformed_pair(generator)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(src), dst)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    recent.append(loss.item())
    if step % 20 == 19:
        print(f"step {step + 1:3d}  mse {sum(recent[-20:]) / 20:.5f}")
