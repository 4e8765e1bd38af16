import torch
from torch import nn
from torch.amp import GradScaler, autocast


class GAN:
    def __init__(self, device):
        self.device = device
        self.G = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2)).to(device)
        self.D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
        self.opt_g = torch.optim.SGD(self.G.parameters(), lr=0.02)
        self.opt_d = torch.optim.SGD(self.D.parameters(), lr=0.02)
        self.scaler_g = GradScaler(device, init_scale=2.0**11)
        self.scaler_d = GradScaler(device, init_scale=2.0**15)
        self.bce = nn.BCEWithLogitsLoss()

    def real(self, n):
        a = torch.rand(n) * 6.283
        return torch.stack([a.cos(), a.sin()], 1).to(self.device)

    def d_step(self, n):
        x, z = self.real(n), torch.randn(n, 8, device=self.device)
        with autocast(self.device, dtype=torch.float16):
            f = self.G(z).detach()
            dr, df = self.D(x), self.D(f)
            loss = self.bce(dr, torch.ones_like(dr)) + self.bce(df, torch.zeros_like(df))
        self.opt_d.zero_grad()
        self.scaler_d.scale(loss).backward()
        self.scaler_d.step(self.opt_d)
        self.scaler_d.update()
        return loss.item()

    def g_step(self, n):
        z = torch.randn(n, 8, device=self.device)
        with autocast(self.device, dtype=torch.float16):
            fake = self.G(z)
            d = self.D(fake)
            loss = self.bce(d, torch.ones_like(d))
            spread = -0.01 * fake.float().std(0).mean()
        self.opt_g.zero_grad()
        self.scaler_g.scale(spread).backward(retain_graph=True)
        self.scaler_d.scale(loss).backward()
        self.scaler_g.step(self.opt_g)
        self.scaler_g.update()
        return loss.item()


def main():
    torch.manual_seed(0)
    gan = GAN("cuda" if torch.cuda.is_available() else "cpu")
    for i in range(150):
        ld, lg = gan.d_step(64), gan.g_step(64)
    print(f"D {ld:.4f} G {lg:.4f} scale {gan.scaler_g.get_scale()} {gan.scaler_d.get_scale()}")


main()
