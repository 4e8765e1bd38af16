#!/usr/bin/env python
# VAE, half-precision network with FP32 master weights and a static loss scale (no autocast).
import torch
import torch.nn as nn
import torch.nn.functional as F

DEV = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOSS_SCALE = 8192.0
MAX_NORM = 200.0


def faces(n, g):
    """24x24 cartoon faces: head ellipse, two eyes, mouth."""
    ax = torch.linspace(-1, 1, 24)
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    s = 0.7 + 0.25 * torch.rand(n, 1, 1, generator=g)
    e = 0.25 + 0.1 * torch.rand(n, 1, 1, generator=g)
    m = 0.3 + 0.25 * torch.rand(n, 1, 1, generator=g)
    img = torch.sigmoid(12 * (s - (xx ** 2 + (0.85 * yy) ** 2).sqrt())) * 0.8
    for side in (-1, 1):
        img = img - 0.7 * torch.exp(-((xx - side * e) ** 2 + (yy + 0.2) ** 2) / 0.012)
    img = img - 0.6 * torch.exp(-((yy - m) ** 2) / 0.006 - xx ** 2 / 0.08)
    return img.clamp(0, 1).flatten(1)


class VAE(nn.Module):
    def __init__(self, d=576, h=192, z=10):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.mu, self.logvar = nn.Linear(h, z), nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, d))

    def forward(self, x, noise):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + noise * torch.exp(0.5 * logvar)
        return self.dec(z), mu, logvar


def elbo(logits, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="none").sum(1)
    kl = -0.5 * (1 + logvar.float() - mu.float() ** 2 - logvar.float().exp()).sum(1)
    return (rec + kl).mean()


class MasterOptimizer:
    """FP32 copies of the weights; gradients are unscaled on their way into the copies."""

    def __init__(self, params, lr, scale):
        self.model_params = list(params)
        self.master = [p.detach().clone().float().requires_grad_(True) for p in self.model_params]
        self.inner = torch.optim.SGD(self.master, lr=lr, momentum=0.9)
        self.scale = scale

    def backward(self, loss):
        for p in self.model_params:
            p.grad = None
        (loss * self.scale).backward()

    def clip(self, max_norm):
        # gradients still carry the loss scale here, and so does the threshold
        return torch.nn.utils.clip_grad_norm_(self.model_params, max_norm * self.scale)

    @torch.no_grad()
    def step(self):
        for m, p in zip(self.master, self.model_params):
            m.grad = p.grad.float() / self.scale
        self.inner.step()
        for m, p in zip(self.master, self.model_params):
            p.copy_(m)


if __name__ == "__main__":
    torch.manual_seed(4)
    g = torch.Generator().manual_seed(40)
    net = VAE().to(DEV).half()
    opt = MasterOptimizer(net.parameters(), lr=2e-4, scale=LOSS_SCALE)
    history = []
    for it in range(160):
        x = faces(48, g).to(DEV)
        noise = torch.randn(48, 10, generator=g).to(DEV)
        logits, mu, logvar = net(x.half(), noise.half())
        loss = elbo(logits, x, mu, logvar)
        opt.backward(loss)
        opt.clip(MAX_NORM)
        opt.step()
        history.append(loss.item())
        if it % 20 == 0:
            print(f"it {it:3d}  -elbo {history[-1]:.2f}")
    print(f"final -elbo {sum(history[-10:]) / 10:.2f}")
