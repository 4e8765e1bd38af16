"""Sharpness-aware training of a small image model; features and head have their own SGD."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
LOSS_SCALE = 2.0 ** 12


class SAM:
    def __init__(self, params, optimizers, rho=0.05):
        self.params, self.optimizers, self.rho = list(params), optimizers, rho
        self.e = {}

    @torch.no_grad()
    def climb(self):
        # the ascent direction is normalised
        norm = torch.stack([p.grad.float().norm() for p in self.params]).norm()
        for p in self.params:
            self.e[p] = p.grad * (self.rho / (norm + 1e-12))
            p.add_(self.e[p])

    @torch.no_grad()
    def descend(self):
        for p in self.params:
            p.sub_(self.e[p])
            p.grad.div_(LOSS_SCALE)
        for o in self.optimizers:
            o.step()

    def zero(self):
        for o in self.optimizers:
            o.zero_grad(set_to_none=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    torch.manual_seed(17)
    protos = F.interpolate(torch.randn(4, 1, 4, 4), size=12, mode="bilinear")
    net = Net().to(device)
    sgd_f = torch.optim.SGD(net.features.parameters(), lr=0.1, momentum=0.9)
    sgd_h = torch.optim.SGD(net.head.parameters(), lr=0.05, momentum=0.9)
    sam = SAM(net.parameters(), [sgd_f, sgd_h])
    hist = []
    for it in range(80):
        y = torch.randint(0, 4, (32,))
        x = (protos[y] + 0.6 * torch.randn(32, 1, 12, 12)).to(device)
        y = y.to(device)
        for phase in ("climb", "descend"):
            sam.zero()
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(net(x), y)
            (loss * LOSS_SCALE).backward()
            getattr(sam, phase)()
        hist.append(loss.item())
        if it % 20 == 0:
            print(it, round(loss.item(), 4))
    print(f"FINAL loss={sum(hist[-10:]) / 10:.4f}")


main()
