"""Airborne lidar: classify small tiles (roof, tree, wire, ground ...) from their points. Tiles are cut once and cached in memory."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ["flat roof", "gable roof", "tree", "wire", "bare ground"]
N_TILES, N_POINTS, SIDE = 640, 96, 4.0


def shape(kind, n, g):
    """Points of one object in a box of SIDE metres, z above the tile's ground level."""
    p = torch.rand(n, 3, generator=g) * SIDE
    if kind == 0:
        p[:, 2] = 2.0
    elif kind == 1:
        p[:, 2] = 2.0 + 0.35 * (SIDE / 2 - (p[:, 0] - SIDE / 2).abs())
    elif kind == 2:
        d = torch.randn(n, 3, generator=g)
        p = SIDE / 2 + 0.9 * d / d.norm(dim=1, keepdim=True) * torch.rand(n, 1, generator=g) ** 0.33
    elif kind == 3:
        s = torch.rand(n, generator=g)
        p = torch.stack([s * SIDE, SIDE / 2 + 0.2 * s, 2.0 + (s - 0.5) ** 2], 1)
    else:
        p[:, 2] = 2.0 + 0.25 * torch.sin(2.5 * p[:, 0]) * torch.cos(2.5 * p[:, 1])
    return p + 0.02 * torch.randn(n, 3, generator=g)


class TileCache:
    """Survey tiles in the project's local grid (metres east, north, up from the survey's corner)."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.kind = torch.randint(0, len(KINDS), (n,), generator=g)
        self.points = torch.zeros(n, N_POINTS, 3, dtype=torch.float16)     # thousands of tiles: half the memory
        for i in range(n):
            corner = torch.tensor([2000.0, 3000.0, 900.0]) + torch.rand(3, generator=g) * torch.tensor([6000.0, 5000.0, 700.0])
            self.points[i] = corner + shape(int(self.kind[i]), N_POINTS, g)

    def batch(self, idx):
        return self.points[idx].to(device), self.kind[idx].to(device)


class PointNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, len(KINDS)))

    def forward(self, xyz):
        xyz = xyz.float()
        xyz = 2 * (xyz - xyz.mean(1, keepdim=True))    # local frame of the tile, in half metres
        f = self.local(xyz)
        return self.head(torch.cat([f.max(1).values, f.mean(1)], -1))


def augment(xyz):
    """Half of the tiles seen from the other side."""
    flip = torch.rand(xyz.shape[0], 1, 1, device=xyz.device) < 0.5
    return torch.where(flip, xyz[..., [1, 0, 2]], xyz)


def evaluate(model, cache):
    model.eval()
    hit = torch.zeros(len(KINDS))
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        xyz, kind = cache.batch(torch.arange(len(cache.kind)))
        good = (model(xyz).argmax(-1) == kind).float().cpu()
    for k in range(len(KINDS)):
        hit[k] = good[cache.kind == k].mean()
    model.train()
    return good.mean().item(), hit.tolist()


def train(steps=150, batch=48):
    torch.manual_seed(0)
    train_set, test_set = TileCache(N_TILES, 1), TileCache(256, 2)
    model = PointNet().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    scaler = torch.amp.GradScaler(device)
    for step in range(steps):
        xyz, kind = train_set.batch(torch.randint(0, N_TILES, (batch,)))
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(augment(xyz)), kind)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 30 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    acc, per_kind = evaluate(model, test_set)
    print("per kind " + "  ".join(f"{k}: {v:.2f}" for k, v in zip(KINDS, per_kind)))
    print(f"test accuracy {acc:.3f}")


if __name__ == "__main__":
    train()
