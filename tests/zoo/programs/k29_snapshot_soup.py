# Fatigue-life surrogate: the network runs and is stored in fp16, an fp32 copy takes the updates,
# and the deployed weights are the running mean of the last snapshots, also kept in fp16.
import math
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 256.0


def specimens(n, gen):
    load, temp, rough, freq = torch.rand(4, n, generator=gen)
    life = 2.0 - 3.0 * torch.log1p(2 * load) + 0.5 * torch.cos(3 * temp) - 0.7 * rough * load + 0.3 * freq ** 2
    life = life + 0.05 * torch.randn(n, generator=gen)
    return torch.stack([load, temp, rough, freq], 1).to(device), life.to(device)


def network():
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)


class MasterAdam(torch.optim.Adam):
    """Adam over fp32 copies; `pull` takes scaled fp16 gradients, `push` writes the rounded weights back."""

    def __init__(self, model, **kw):
        self.live = list(model.parameters())
        super().__init__([p.detach().float().clone().requires_grad_(True) for p in self.live], **kw)

    def pull(self):
        for m, p in zip(self.param_groups[0]["params"], self.live):
            m.grad = p.grad.float() / SCALE
            p.grad = None

    def push(self):
        with torch.no_grad():
            for m, p in zip(self.param_groups[0]["params"], self.live):
                p.copy_(m)


class Soup:
    def __init__(self, model):
        self.count = 0
        self.mean = [torch.zeros_like(p) for p in model.parameters()]

    @torch.no_grad()
    def stir(self, model):
        self.count += 1
        for avg, p in zip(self.mean, model.parameters()):
            avg += (p - avg) / self.count

    @torch.no_grad()
    def serve(self):
        out = network().to(self.mean[0].dtype)
        for p, avg in zip(out.parameters(), self.mean):
            p.copy_(avg)
        return out


torch.manual_seed(3)
gen = torch.Generator().manual_seed(30)
model = network().half()
opt = MasterAdam(model, lr=3e-3)
soup = Soup(model)
tx, ty = specimens(4000, torch.Generator().manual_seed(31))
for step in range(1, 261):
    for g in opt.param_groups:
        g["lr"] = 3e-3 * (0.3 + 0.7 * 0.5 * (1 + math.cos(math.pi * min(step, 160) / 160)))
    x, y = specimens(256, gen)
    out = model(x.half()).squeeze(1).float()
    loss = (out - y).pow(2).mean()
    (loss * SCALE).backward()
    opt.pull()
    opt.step()
    opt.push()
    if step > 20 and step % 20 == 0:
        soup = soup if step > 180 else Soup(model)
        soup.stir(model)
    if step % 65 == 0:
        print(f"step {step} mse {loss.item():.5f} snapshots {soup.count}")
with torch.no_grad():
    final = (soup.serve()(tx.half()).squeeze(1).float() - ty).pow(2).mean().item()
print(f"final averaged test mse {final:.5f}")
