"""R1 and gradient penalty, the gradients unscaled as the PyTorch documentation says."""
import torch
import torch.nn as nn


def make(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, o))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make(2, 1)

    def forward(self, x):
        return self.net(x)


def grad_norm(scaler, out, x):
    g = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)[0]
    return (g.float() / scaler.get_scale()).square().sum(1).add(1e-12).sqrt()


def main():
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    critic = Critic().to(dev)
    opt = torch.optim.Adam(critic.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(dev, init_scale=2.0**8)
    for i in range(80):
        real = torch.randn(64, 2, device=dev) * 0.3 + 1.0
        fake = torch.randn(64, 2, device=dev) * 0.3 - 1.0
        u = torch.rand(64, 1, device=dev)
        mix = (u * real + (1 - u) * fake).requires_grad_()
        opt.zero_grad(set_to_none=True)
        with torch.autocast(dev, dtype=torch.float16):
            w = critic(fake).mean() - critic(real).mean()
            out = critic(mix)
        n = grad_norm(scaler, out, mix)
        with torch.autocast(dev, dtype=torch.float16):
            loss = w + 10 * ((n - 1) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print("w", w.item(), "norm", n.mean().item(), "scale", scaler.get_scale())


main()
