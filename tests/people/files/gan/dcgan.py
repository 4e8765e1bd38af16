"""DCGAN with AMP: one scaler, two optimizers."""
import argparse
import os
import random

import torch
import torch.nn as nn
import torch.optim as optim
import torchvision
from torch.cuda.amp import GradScaler, autocast

parser = argparse.ArgumentParser()
parser.add_argument("--nz", type=int, default=32, help="size of the latent z vector")
parser.add_argument("--ngf", type=int, default=8)
parser.add_argument("--ndf", type=int, default=8)
parser.add_argument("--batchSize", type=int, default=16)
parser.add_argument("--niter", type=int, default=2)
parser.add_argument("--manualSeed", type=int)
parser.add_argument("--outf", default="samples")


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, nz, ngf, nc=3):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, nc, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ndf, nc=3):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False))

    def forward(self, input):
        return self.main(input).view(-1)


if __name__ == "__main__":
    opt = parser.parse_args()
    if opt.manualSeed is None:
        opt.manualSeed = random.randint(1, 10000)
    print("Random Seed:", opt.manualSeed)
    torch.manual_seed(opt.manualSeed)
    os.makedirs(opt.outf, exist_ok=True)
    device = torch.device("cuda:0")
    dataset = torchvision.datasets.FakeData(320, (3, 16, 16), 10, torchvision.transforms.ToTensor())
    dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True)
    netG = Generator(opt.nz, opt.ngf).to(device)
    netG.apply(weights_init)
    netD = Discriminator(opt.ndf).to(device)
    netD.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(16, opt.nz, 1, 1, device=device)
    optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
    scaler = GradScaler()
    for epoch in range(opt.niter):
        for i, data in enumerate(dataloader, 0):
            real = data[0].to(device)
            b = real.size(0)
            optimizerD.zero_grad()
            with autocast():
                errD_real = criterion(netD(real), torch.ones(b, device=device))
                noise = torch.randn(b, opt.nz, 1, 1, device=device)
                fake = netG(noise)
                errD_fake = criterion(netD(fake.detach()), torch.zeros(b, device=device))
                errD = errD_real + errD_fake
            scaler.scale(errD).backward()
            scaler.step(optimizerD)
            optimizerG.zero_grad()
            with autocast():
                errG = criterion(netD(fake), torch.ones(b, device=device))
            scaler.scale(errG).backward()
            scaler.step(optimizerG)
            scaler.update()
            if i % 10 == 0:
                print(f"[{epoch}/{opt.niter}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
        with torch.no_grad():
            grid = netG(fixed_noise)
        torchvision.utils.save_image(grid.float().cpu(), f"{opt.outf}/fake_{epoch}.png", normalize=True)
