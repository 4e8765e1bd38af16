"""Iterative optical flow on random dot fields: features, warped correlation, a recurrent update of the coordinates."""
import torch
import torch.nn as nn
import torch.nn.functional as F

HEIGHT, WIDTH, BATCH, ITERS, STEPS = 24, 80, 4, 3, 110


def coords_grid(batch, h, w, like):
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack([xs, ys]).to(device=like.device, dtype=like.dtype)
    return grid.expand(batch, 2, h, w)


def sample(feat, coords):
    h, w = feat.shape[-2:]
    x = 2 * coords[:, 0] / (w - 1) - 1
    y = 2 * coords[:, 1] / (h - 1) - 1
    return F.grid_sample(feat, torch.stack([x, y], -1), align_corners=True, padding_mode="border")


class FeatureNet(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, dim, 5, padding=2), nn.ReLU(), nn.Conv2d(dim, dim, 3, padding=1))

    def forward(self, x):
        return self.net(x)


class UpdateBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix = nn.Sequential(nn.Conv2d(2 * dim + 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 5, padding=2),
                                 nn.ReLU())
        self.flow_head = nn.Conv2d(32, 2, 3, padding=1)

    def forward(self, f1, f2, flow):
        return self.flow_head(self.mix(torch.cat([f1, f2 - f1, flow], 1)))


class FlowRefiner(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.features = FeatureNet(dim)
        self.update = UpdateBlock(dim)

    def forward(self, a, b):
        f1, f2 = self.features(a), self.features(b)
        coords0 = coords_grid(a.shape[0], *a.shape[-2:], like=f1)
        coords1 = coords0.clone()
        flows = []
        for _ in range(ITERS):
            coords1 = coords1.detach()
            warped = sample(f2, coords1)
            delta = self.update(f1, warped, coords1 - coords0)
            coords1 = coords1 + delta
            flows.append(coords1 - coords0)
        return flows


class DotFields:
    """Smooth images and the same ones moved by an affine sub-pixel field."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n):
        base = torch.randn(n, 1, HEIGHT // 2, WIDTH // 2, generator=self.gen)
        image = F.interpolate(base, size=(HEIGHT, WIDTH), mode="bicubic", align_corners=True)
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, HEIGHT), torch.linspace(-1, 1, WIDTH), indexing="ij")
        shift = 1.2 * (torch.rand(n, 2, 1, 1, generator=self.gen) - 0.5)
        shear = 0.5 * (torch.rand(n, 2, 1, 1, generator=self.gen) - 0.5)
        flow = shift + shear * torch.stack([ys, xs])
        grid = torch.stack(torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")[::-1]).float()
        moved = sample(image, grid - flow)
        return image, moved, flow


def sequence_loss(flows, target, gamma=0.8):
    n = len(flows)
    return sum(gamma ** (n - i - 1) * (f.float() - target).abs().mean() for i, f in enumerate(flows))


def train():
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = FlowRefiner().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=STEPS)
    data = DotFields(2)
    for step in range(STEPS):
        a, b, flow = (t.to(device) for t in data.batch(BATCH))
        with torch.autocast(device, dtype=torch.bfloat16):
            flows = model(a, b)
            loss = sequence_loss(flows, flow)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0:
            epe = (flows[-1].float() - flow).norm(dim=1).mean().item()
            print(f"step {step:3d}  loss {loss.item():.4f}  epe {epe:.4f}")
    a, b, flow = (t.to(device) for t in DotFields(77).batch(16))
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        epe = (model(a, b)[-1].float() - flow).norm(dim=1).mean().item()
    print(f"validation epe {epe:.4f} px")


if __name__ == "__main__":
    train()
