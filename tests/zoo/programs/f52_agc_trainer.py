"""House trainer: normaliser-free residual MLP for sensor classification, adaptive gradient clipping, own loss scaler."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"


class LossScale:
    def __init__(self, init=2.0 ** 15, grow_every=200):
        self.value, self.grow_every, self.good = init, grow_every, 0

    def grads_finite(self, params):
        return all(torch.isfinite(p.grad).all() for p in params if p.grad is not None)

    def unscale(self, params):
        inv = 1.0 / self.value
        for p in params:
            if p.grad is not None:
                p.grad.mul_(inv)

    def update(self, ok):
        if not ok:
            self.value, self.good = self.value / 2, 0
        else:
            self.good += 1
            if self.good % self.grow_every == 0:
                self.value *= 2


def unitwise_norm(t):
    return t.norm() if t.ndim <= 1 else t.flatten(1).norm(dim=1).view(-1, *([1] * (t.ndim - 1)))


@torch.no_grad()
def adaptive_clip(params, factor=0.08, eps=1e-3):
    """Brock et al. 2021: limit each unit's gradient norm to a fraction of its weight norm."""
    for p in params:
        if p.grad is None:
            continue
        limit = unitwise_norm(p).clamp_min(eps) * factor
        gnorm = unitwise_norm(p.grad).clamp_min(1e-6)
        p.grad.mul_((limit / gnorm).clamp_max(1.0))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + 0.3 * self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, n_in=48, d=96, depth=4, n_cls=8):
        super().__init__()
        self.stem = nn.Linear(n_in, d)
        self.blocks = nn.Sequential(*[Block(d) for _ in range(depth)])
        self.head = nn.Linear(d, n_cls)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


class Trainer:
    def __init__(self, model, lr=0.1, momentum=0.9):
        self.model, self.params = model, list(model.parameters())
        self.opt = torch.optim.SGD(self.params, lr=lr, momentum=momentum)
        self.scale = LossScale()

    def step(self, x, y):
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad(set_to_none=True)
        (loss * self.scale.value).backward()
        ok = self.scale.grads_finite(self.params)
        if ok:
            adaptive_clip(self.params)
            self.scale.unscale(self.params)
            self.opt.step()
        self.scale.update(ok)
        return loss.item()


centres = torch.randn(8, 48, device=device)
mix = torch.randn(48, 48, device=device) / 7


def batch(n):
    y = torch.randint(0, 8, (n,), device=device)
    x = centres[y] * 0.5 + torch.randn(n, 48, device=device)
    return torch.tanh(x @ mix) * 2, y


model = Net().to(device)
trainer = Trainer(model)
for it in range(150):
    loss = trainer.step(*batch(64))
    if it % 25 == 24:
        print(f"iter {it + 1}  loss {loss:.4f}  scale {trainer.scale.value:g}")
with torch.no_grad():
    x_val, y_val = batch(2000)
    acc = (model(x_val).argmax(-1) == y_val).float().mean().item()
print(f"validation accuracy {acc:.3f}")
