"""Regress household spending on survey answers. Full-batch descent, step size halves on a plateau."""
import copy
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"


def survey(n, seed):
    g = torch.Generator().manual_seed(seed)
    latent = torch.randn(n, 6, generator=g)
    mix = torch.randn(6, 24, generator=torch.Generator().manual_seed(99)) / 2.4
    answers = (latent @ mix + 0.3 * torch.randn(n, 24, generator=g)).clamp(-2, 2)
    spend = 3.0 + latent[:, 0] + 0.7 * latent[:, 1] * latent[:, 2] + 0.5 * latent[:, 3].abs()
    return answers, (spend[:, None] - 3.4) / 1.35


class Mixed:
    """Half-size working copy of the network, full-size weights for the optimizer."""

    def __init__(self, net, lr):
        self.master = net
        self.work = copy.deepcopy(net).to(torch.bfloat16)
        self.opt = torch.optim.SGD(self.master.parameters(), lr=lr, momentum=0.5)

    def pull(self):
        with torch.no_grad():
            for w, m in zip(self.work.parameters(), self.master.parameters()):
                w.copy_(m)

    def update(self):
        for w, m in zip(self.work.parameters(), self.master.parameters()):
            m.grad = w.grad.float()
            w.grad = None
        self.opt.step()
        self.pull()


net = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)).to(device)
trainer = Mixed(net, lr=0.0004)
sched = ReduceLROnPlateau(trainer.opt, factor=0.5, patience=1)
x, y = (t.to(device) for t in survey(256, 0))
xv, yv = (t.to(device) for t in survey(2000, 1))
xh, yh = x.to(torch.bfloat16), y.to(torch.bfloat16)

for epoch in range(300):
    loss = nn.functional.mse_loss(trainer.work(xh), yh)
    loss.backward()
    trainer.update()
    sched.step(loss.item())
    if epoch % 50 == 0:
        print(f"epoch {epoch:3d} train {loss.item():.4f} lr {trainer.opt.param_groups[0]['lr']:.2e}")

with torch.no_grad():
    fit = nn.functional.mse_loss(net(x), y).item()
    val = nn.functional.mse_loss(net(xv), yv).item()
print(f"final train {fit:.4f} validation {val:.4f}")
