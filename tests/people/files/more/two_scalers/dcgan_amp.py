import argparse
import os
import random

import torch
import torch.nn as nn
import torch.utils.data
import torchvision.datasets as dset
import torchvision.transforms as transforms
import torchvision.utils as vutils

parser = argparse.ArgumentParser()
parser.add_argument('--dataset', default='fake', help='cifar10 | folder | fake')
parser.add_argument('--dataroot', required=False)
parser.add_argument('--batchSize', type=int, default=32)
parser.add_argument('--nz', type=int, default=64)
parser.add_argument('--ngf', type=int, default=16)
parser.add_argument('--ndf', type=int, default=16)
parser.add_argument('--niter', type=int, default=25)
parser.add_argument('--lr', type=float, default=0.0002)
parser.add_argument('--outf', default='.')
opt = parser.parse_args()
print(opt)
device = torch.device("cuda:0")

if opt.dataset == 'fake':
    dataset = dset.FakeData(size=2000, image_size=(3, 32, 32), transform=transforms.ToTensor())
elif opt.dataset == 'cifar10':
    dataset = dset.CIFAR10(root=opt.dataroot, download=True, transform=transforms.ToTensor())
dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True, num_workers=2)
nz, ngf, ndf, nc = opt.nz, opt.ngf, opt.ndf, 3


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find('Conv') != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find('BatchNorm') != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 4), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False))

    def forward(self, input):
        return self.main(input).view(-1)


netG = Generator().to(device)
netG.apply(weights_init)
netD = Discriminator().to(device)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(64, nz, 1, 1, device=device)
optimizerD = torch.optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
scalerD = torch.amp.GradScaler('cuda')
scalerG = torch.amp.GradScaler('cuda')

for epoch in range(opt.niter):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real = data[0].to(device)
        n = real.size(0)
        with torch.amp.autocast('cuda'):
            errD_real = criterion(netD(real), torch.ones(n, device=device))
            fake = netG(torch.randn(n, nz, 1, 1, device=device))
            errD_fake = criterion(netD(fake.detach()), torch.zeros(n, device=device))
        scalerD.scale(errD_real).backward()
        scalerD.scale(errD_fake).backward()
        scalerD.step(optimizerD)
        scalerD.update()

        netG.zero_grad()
        with torch.amp.autocast('cuda'):
            errG = criterion(netD(fake), torch.ones(n, device=device))
        scalerG.scale(errG).backward()
        scalerG.step(optimizerG)

        print('[%d/%d][%d/%d] Loss_D: %.4f Loss_G: %.4f' % (epoch, opt.niter, i, len(dataloader), (errD_real + errD_fake).item(), errG.item()))
        if i % 100 == 0:
            vutils.save_image(real, '%s/real_samples.png' % opt.outf, normalize=True)
            vutils.save_image(netG(fixed_noise).detach(), '%s/fake_%03d.png' % (opt.outf, epoch), normalize=True)
    torch.save(netG.state_dict(), '%s/netG_epoch_%d.pth' % (opt.outf, epoch))
