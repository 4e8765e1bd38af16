# Classifier of satellite tiles, weights in half precision with fp32 masters and a loss scale of our own.
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class LossScale:
    """Starts high, halves on overflow, doubles after `window` good steps."""

    def __init__(self, start=2.0 ** 24, window=50, lowest=1.0):
        self.value, self.window, self.lowest, self.good = start, window, lowest, 0

    def update(self, overflow):
        if overflow:
            self.value, self.good = max(self.value / 2, self.lowest), 0
        else:
            self.good += 1
            if self.good % self.window == 0:
                self.value *= 2


class HalfOptimizer:
    """Keeps an fp32 master of every half parameter and steps the inner optimizer on the masters."""

    def __init__(self, model, make, max_norm=1.0):
        self.half = list(model.parameters())
        self.master = [nn.Parameter(p.detach().float().clone()) for p in self.half]
        self.inner = make(self.master)
        self.scale = LossScale()
        self.max_norm = max_norm

    def backward(self, loss):
        (loss.float() * self.scale.value).backward()

    def step(self):
        overflow = False
        for m, p in zip(self.master, self.half):
            m.grad = p.grad.float() / self.scale.value
            overflow |= not torch.isfinite(m.grad).all()
        if not overflow:
            nn.utils.clip_grad_norm_(self.master, self.max_norm)
            self.inner.step()
            with torch.no_grad():
                for m, p in zip(self.master, self.half):
                    p.copy_(m)
        self.scale.update(bool(overflow))
        for p in self.half:
            p.grad = None
        return not overflow


class Mixer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU(), nn.Linear(tokens, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class TileNet(nn.Module):
    def __init__(self, dim=48, depth=3, patch=6, size=24, bands=4, classes=5):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(bands * patch * patch, dim)
        self.blocks = nn.Sequential(*[Mixer((size // patch) ** 2, dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        return self.head(self.norm(self.blocks(self.embed(x))).mean(1))


def tiles(n, gen, size=24):
    """Five land covers: stripes of two periods, checks, spots, plain."""
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    label = torch.randint(0, 5, (n,), generator=gen)
    phase = 6.28 * torch.rand(n, 1, 1, generator=gen)
    kinds = torch.stack([torch.sin(xx * 0.8 + phase), torch.sin(xx * 1.6 + phase), torch.sin(xx * 0.8 + phase) * torch.sin(yy * 0.8 + phase),
                         (torch.sin(xx * 1.1 + phase) * torch.cos(yy * 1.1)).clamp(min=0.5) * 2 - 1, torch.zeros(n, size, size)], 1)
    base = kinds[torch.arange(n), label]
    gains = 0.5 + torch.rand(n, 4, 1, 1, generator=gen)
    return base.unsqueeze(1) * gains + 0.8 * torch.randn(n, 4, size, size, generator=gen), label


def main(steps=200, batch=24):
    torch.manual_seed(33)
    gen = torch.Generator().manual_seed(34)
    net = TileNet().to(device).half()
    opt = HalfOptimizer(net, lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01))
    done = 0
    for step in range(steps):
        x, y = (t.to(device) for t in tiles(batch, gen))
        loss = F.cross_entropy(net(x.half()).float(), y)
        opt.backward(loss)
        done += opt.step()
        if step % 25 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    x, y = (t.to(device) for t in tiles(512, torch.Generator().manual_seed(35)))
    with torch.no_grad():
        logits = net(x.half()).float()
    print(f"test loss {F.cross_entropy(logits, y).item():.4f}  accuracy {(logits.argmax(1) == y).float().mean().item():.4f}  ({done} updates)")


if __name__ == "__main__":
    main()
