"""Energy-based diffusion: the score is minus the gradient of a scalar energy (as in Salimans & Ho, Du et al.), 2-D toy data."""
import math
import torch
import torch.nn as nn

dev = "cuda" if torch.cuda.is_available() else "cpu"


class Energy(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.l1 = nn.Linear(2 + 16, h)
        self.l2 = nn.Linear(h, h)
        self.l3 = nn.Linear(h, h)
        self.out = nn.Linear(h, 1)
        nn.init.normal_(self.out.weight, std=0.02)
        self.register_buffer("freq", torch.exp(torch.linspace(0, 3, 8)))

    def forward(self, x, sigma):
        a = torch.log(sigma)[:, None] * self.freq
        h = torch.cat([x / (0.25 + sigma[:, None] ** 2).sqrt(), a.sin(), a.cos()], 1)
        h = nn.functional.silu(self.l1(h))
        h = nn.functional.silu(self.l2(h))
        h = nn.functional.silu(self.l3(h))
        return self.out(h).squeeze(1) / math.sqrt(h.shape[1])


def score(net, x, sigma):
    x = x.detach().requires_grad_(True)
    energy = net(x, sigma).mean()
    g, = torch.autograd.grad(energy, x, create_graph=True)
    return -g * x.shape[0]              # undo the mean


def pinwheel(n):
    k = torch.randint(0, 5, (n,))
    r = 0.7 + 0.2 * torch.randn(n)
    a = k * 2 * math.pi / 5 + 0.7 * r + 0.08 * torch.randn(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1)


class Runner:
    def __init__(self, steps=120, batch=1024, lr=4e-3):
        torch.manual_seed(0)
        self.net = Energy().to(dev)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler(dev, init_scale=64.0)
        self.steps, self.batch = steps, batch

    def loss(self):
        x = pinwheel(self.batch).to(dev)
        sigma = torch.exp(torch.empty(self.batch).uniform_(math.log(0.1), math.log(1.0))).to(dev)
        noise = torch.randn_like(x)
        with torch.autocast(dev, dtype=torch.float16):
            s = score(self.net, x + sigma[:, None] * noise, sigma)
        return ((sigma[:, None] * s + noise) ** 2).sum(1).mean()

    def run(self):
        for i in range(self.steps):
            self.opt.zero_grad()
            loss = self.loss()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            if i % 20 == 19:
                print(f"{i + 1} dsm loss {loss.item():.4f} scale {self.scaler.get_scale():.0f}")


if __name__ == "__main__":
    Runner().run()
