import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class GAN:
    def __init__(self):
        self.g = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
        self.d = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
        self.og = torch.optim.Adam(self.g.parameters(), 1e-3, betas=(0.5, 0.999))
        self.od = torch.optim.Adam(self.d.parameters(), 1e-3, betas=(0.5, 0.999))
        self.scaler = torch.cuda.amp.GradScaler()
        self.bce = nn.BCEWithLogitsLoss()

    def step(self, real):
        z = torch.randn(len(real), 8, device=device)
        one = torch.ones(len(real), 1, device=device)
        with torch.cuda.amp.autocast():
            fake = self.g(z)
            ld = self.bce(self.d(real), one) + self.bce(self.d(fake.detach()), 0 * one)
        self.od.zero_grad()
        self.scaler.scale(ld).backward()
        self.scaler.step(self.od)
        with torch.cuda.amp.autocast():
            lg = self.bce(self.d(fake), one)
        self.og.zero_grad()
        self.scaler.scale(lg).backward()
        self.scaler.step(self.og)
        self.scaler.update()
        return ld.item(), lg.item()


gan = GAN()
G, D = gan.g, gan.d
for i in range(50):
    r = gan.step(torch.randn(64, 2, device=device) * 0.3 + 1)
print(r)
