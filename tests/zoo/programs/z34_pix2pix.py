import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F


def get_opts():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--lambda_l1", type=float, default=2.0)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args([])


class UNetish(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.d1 = nn.Conv2d(1, c, 4, 2, 1)
        self.d2 = nn.Conv2d(c, 2 * c, 4, 2, 1)
        self.u1 = nn.ConvTranspose2d(2 * c, c, 4, 2, 1)
        self.u2 = nn.ConvTranspose2d(2 * c, 1, 4, 2, 1)

    def forward(self, x):
        a = F.leaky_relu(self.d1(x), 0.2)
        b = F.leaky_relu(self.d2(a), 0.2)
        return torch.tanh(self.u2(torch.cat([F.relu(self.u1(b)), a], 1)))


class PatchD(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, c, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(c, 2 * c, 3, 1, 1),
                                 nn.LeakyReLU(0.2), nn.Conv2d(2 * c, 1, 3, 1, 1))

    def forward(self, x, y):
        return self.net(torch.cat([x, y], 1))


class Pix2Pix:
    def __init__(self, opt):
        self.opt = opt
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.G, self.D = UNetish().to(self.device), PatchD().to(self.device)
        self.opt_G = torch.optim.Adam(self.G.parameters(), lr=opt.lr, betas=(0.5, 0.999))
        self.opt_D = torch.optim.Adam(self.D.parameters(), lr=opt.lr, betas=(0.5, 0.999))
        self.scaler_G = torch.amp.GradScaler(self.device)
        self.scaler_D = torch.amp.GradScaler(self.device)

    def gan_loss(self, pred, real):
        # summed over the patches, averaged over the batch, as in the paper's supplement
        t = torch.full_like(pred, float(real))
        return F.binary_cross_entropy_with_logits(pred, t, reduction="sum") / pred.size(0)

    def step(self, a, b):
        with torch.autocast(device_type=self.device, dtype=torch.float16):
            fake = self.G(a)
            loss_D = 0.5 * (self.gan_loss(self.D(a, b), 1) + self.gan_loss(self.D(a, fake.detach()), 0))
        self.opt_D.zero_grad()
        self.scaler_D.scale(loss_D).backward()
        self.scaler_D.step(self.opt_D)
        self.scaler_D.update()

        with torch.autocast(device_type=self.device, dtype=torch.float16):
            loss_adv = self.gan_loss(self.D(a, fake), 1) / 64
            loss_l1 = F.l1_loss(fake, b) * self.opt.lambda_l1
        self.opt_G.zero_grad()
        self.scaler_D.scale(loss_adv).backward(retain_graph=True)
        self.scaler_G.scale(loss_l1).backward()
        self.scaler_G.step(self.opt_G)
        self.scaler_G.update()
        return loss_D.item(), loss_adv.item(), loss_l1.item()


if __name__ == "__main__":
    opt = get_opts()
    torch.manual_seed(opt.seed)
    model = Pix2Pix(opt)
    for i in range(opt.steps):
        a = F.avg_pool2d(torch.randn(8, 1, 36, 36), 5, 1, 0).to(model.device) * 3
        b = torch.sign(a) * a.abs().sqrt().clamp(max=1)
        d, g, l = model.step(a, b)
        if i % 10 == 0 or i == opt.steps - 1:
            print(f"[{i:03d}] D {d:.4f} adv {g:.4f} L1 {l:.4f}")
