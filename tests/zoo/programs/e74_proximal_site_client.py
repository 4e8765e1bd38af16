"""Personalising a shared model on one hospital's few labelled cases; a proximal pull keeps it near the shared weights.
Own dynamic loss scaler, as the on-site runtime has none."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(17)
FEAT, CLASSES = 32, 4


class Scaler:
    def __init__(self, scale=2.0 ** 14, window=200):
        self.scale, self.window, self.clean = scale, window, 0

    def step(self, opt, params):
        bad = any(not torch.isfinite(p.grad).all() for p in params)
        if bad:
            self.scale, self.clean = self.scale / 2, 0
            return False
        for p in params:
            p.grad.div_(self.scale)
        opt.step()
        self.clean += 1
        if self.clean % self.window == 0:
            self.scale *= 2
        return True


def net():
    return nn.Sequential(nn.Linear(FEAT, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(device)


proto = torch.randn(CLASSES, FEAT) * 0.45


def cases(n, shift=0.0, noise=0.0):
    y = torch.randint(0, CLASSES, (n,))
    x = proto[y] + torch.randn(n, FEAT) + shift
    flip = torch.rand(n) < noise
    y = torch.where(flip, torch.randint(0, CLASSES, (n,)), y)
    return x.to(device), y.to(device)


def train(model, batches, lr, anchor=None, mu=0.0):
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=lr, momentum=0.9)
    scaler = Scaler()
    for step, (x, y) in enumerate(batches):
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        (loss * scaler.scale).backward()
        if anchor is not None:
            with torch.no_grad():
                for p, a in zip(params, anchor):
                    p.grad.add_(p - a, alpha=mu)
        scaler.step(opt, params)
        if step % 40 == 0:
            print(f"  step {step:3d} loss {loss.item():.4f}")


@torch.no_grad()
def accuracy(model, data):
    return (model(data[0]).argmax(-1) == data[1]).float().mean().item()


shared = net()
train(shared, (cases(64) for _ in range(120)), lr=0.05)
anchor = [p.detach().clone() for p in shared.parameters()]

local = copy.deepcopy(shared)
x_few, y_few = cases(40, shift=0.2, noise=0.4)
train(local, ((x_few, y_few) for _ in range(160)), lr=0.05, anchor=anchor, mu=0.5)

test = cases(2000, shift=0.2)
moved = sum((p - a).square().sum() for p, a in zip(local.parameters(), anchor)).sqrt().item()
print(f"shared model at this site {accuracy(shared, test):.3f}, personalised {accuracy(local, test):.3f}, moved by {moved:.3f}")
