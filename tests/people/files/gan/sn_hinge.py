"""Spectral-norm GAN, hinge loss; the discriminator is stepped without the scaler."""
from argparse import ArgumentParser

import torch
from torch import nn
from torch.nn.utils import spectral_norm
from torch.utils.data import DataLoader, TensorDataset


class ResBlockG(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm2d(ch), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch, 3, padding=1))
        self.skip = nn.Upsample(scale_factor=2)

    def forward(self, x):
        return self.net(x) + self.skip(x)


class NetG(nn.Module):
    def __init__(self, z_dim=16, ch=16):
        super().__init__()
        self.ch = ch
        self.fc = nn.Linear(z_dim, ch * 4 * 4)
        self.blocks = nn.Sequential(ResBlockG(ch), ResBlockG(ch))
        self.out = nn.Sequential(nn.BatchNorm2d(ch), nn.ReLU(), nn.Conv2d(ch, 3, 3, padding=1), nn.Tanh())

    def forward(self, z):
        return self.out(self.blocks(self.fc(z).view(-1, self.ch, 4, 4)))


class NetD(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        sn = spectral_norm
        self.net = nn.Sequential(sn(nn.Conv2d(3, ch, 4, 2, 1)), nn.ReLU(), sn(nn.Conv2d(ch, ch, 4, 2, 1)), nn.ReLU(), nn.Flatten(), sn(nn.Linear(ch * 16, 1)))

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = "cuda"
        self.g, self.d = NetG().to(self.device), NetD().to(self.device)
        self.og = torch.optim.Adam(self.g.parameters(), args.lr, (0.0, 0.9))
        self.od = torch.optim.Adam(self.d.parameters(), args.lr, (0.0, 0.9))
        self.scaler = torch.amp.GradScaler("cuda")
        self.loader = DataLoader(TensorDataset(torch.rand(128, 3, 16, 16) * 2 - 1), 16, shuffle=True)

    def step(self, real):
        z = torch.randn(real.size(0), 16, device=self.device)
        self.od.zero_grad()
        with torch.amp.autocast("cuda"):
            fake = self.g(z)
            loss_d = torch.relu(1 - self.d(real)).mean() + torch.relu(1 + self.d(fake.detach())).mean()
        self.scaler.scale(loss_d).backward()
        self.od.step()

        self.og.zero_grad()
        with torch.amp.autocast("cuda"):
            loss_g = -self.d(fake).mean()
        self.scaler.scale(loss_g).backward()
        self.scaler.step(self.og)
        self.scaler.update()
        return loss_d.item(), loss_g.item()

    def fit(self):
        for epoch in range(self.args.epochs):
            for (real,) in self.loader:
                out = self.step(real.to(self.device))
            print(epoch, *out)


if __name__ == "__main__":
    ap = ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-4)
    Trainer(ap.parse_args()).fit()
