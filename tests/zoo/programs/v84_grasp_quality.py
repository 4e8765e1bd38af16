"""Grasp success from depth features, in half-precision weights with a hand-made dynamic loss scale."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
half = torch.float16
torch.manual_seed(40)


class DynamicScale:
    def __init__(self, init=2.0**11, growth_every=12):
        self.value = torch.full((), init, dtype=half, device=device)
        self.good, self.growth_every, self.skipped = 0, growth_every, 0

    def __call__(self, loss):
        return loss * self.value

    def unscale(self, grads):
        inv = 1.0 / self.value.float()
        out = [g.float() * inv for g in grads]
        return out, all(torch.isfinite(g).all() for g in out)

    def update(self, ok):
        if ok:
            self.good += 1
            if self.good % self.growth_every == 0:
                self.value = self.value * 2
        else:
            self.skipped += 1
            self.good = 0
            self.value = torch.clamp(self.value * 0.5, min=1.0)


class GraspNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = nn.Linear(30, 64)
        self.pose = nn.Linear(6, 64)
        self.mix = nn.Linear(64, 64)
        self.quality = nn.Linear(64, 1)

    def forward(self, depth, pose):
        x = torch.tanh(self.depth(depth)) * torch.sigmoid(self.pose(pose))
        return self.quality(torch.relu(self.mix(x))).squeeze(-1)


shape = torch.randn(30, 6, device=device) / 30**0.5


def grasps(n):
    depth, pose = torch.randn(n, 30, device=device), torch.randn(n, 6, device=device)
    margin = ((depth @ shape) * pose).sum(-1) + 0.3 * torch.randn(n, device=device)
    return depth.to(half), pose.to(half), (margin > 0).float()


model = GraspNet().to(device).to(half)
master = [p.detach().float().clone() for p in model.parameters()]
opt = torch.optim.Adam(master, lr=3e-3)
scale = DynamicScale()
criterion = nn.BCEWithLogitsLoss()

for step in range(1, 501):
    depth, pose, label = grasps(96)
    loss = criterion(model(depth, pose).float(), label)
    grads = torch.autograd.grad(scale(loss), list(model.parameters()))
    grads, ok = scale.unscale(grads)
    if ok:
        for m, g in zip(master, grads):
            m.grad = g
        opt.step()
        with torch.no_grad():
            for p, m in zip(model.parameters(), master):
                p.copy_(m)
    scale.update(ok)
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad():
    depth, pose, label = grasps(3000)
    acc = ((model(depth, pose) > 0).float() == label).float().mean().item()
print(f"grasp accuracy {acc:.3f}")
