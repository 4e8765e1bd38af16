"""WGAN-GP on 2-D points."""
import torch
from torch import autograd, nn, optim

DIM, LATENT, BATCH, LAMBDA, ITERS, CRITIC_ITERS = 64, 8, 32, 10.0, 12, 3
use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(LATENT, DIM), nn.ReLU(True), nn.Linear(DIM, DIM), nn.ReLU(True), nn.Linear(DIM, 2))

    def forward(self, noise):
        return self.main(noise)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, DIM), nn.LeakyReLU(0.2), nn.Linear(DIM, DIM), nn.LeakyReLU(0.2), nn.Linear(DIM, 1))

    def forward(self, x):
        return self.main(x).view(-1)


def sample_data(n):
    angle = torch.rand(n) * 6.2831853
    return torch.stack([angle.cos(), angle.sin()], 1) + torch.randn(n, 2) * 0.05


def calc_gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, device=real.device)
    inter = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    out = critic(inter)
    grads = autograd.grad(out.sum(), inter, create_graph=True)[0]
    return ((grads.norm(2, dim=1) - 1) ** 2).mean() * LAMBDA


def main():
    netG, netD = Generator().to(device), Critic().to(device)
    optD = optim.Adam(netD.parameters(), lr=1e-4, betas=(0.5, 0.9))
    optG = optim.Adam(netG.parameters(), lr=1e-4, betas=(0.5, 0.9))
    for it in range(ITERS):
        for p in netD.parameters():
            p.requires_grad = True
        for _ in range(CRITIC_ITERS):
            real = sample_data(BATCH).to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                fake = netG(torch.randn(BATCH, LATENT, device=device)).detach()
                wd = netD(fake).mean() - netD(real).mean()
            gp = calc_gradient_penalty(netD, real, fake.float())
            optD.zero_grad()
            (wd + gp).backward()
            optD.step()
        for p in netD.parameters():
            p.requires_grad = False
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss_g = -netD(netG(torch.randn(BATCH, LATENT, device=device))).mean()
        optG.zero_grad()
        loss_g.backward()
        optG.step()
        print(it, wd.item(), loss_g.item())


if __name__ == "__main__":
    main()
