"""Physics-informed net for u'' = f on [0, 1]^2 (Poisson), Laplacian by a five-point stencil."""
import argparse
import math
import torch
import torch.nn as nn


def source(xy):
    return -2 * math.pi ** 2 * torch.sin(math.pi * xy[:, :1]) * torch.sin(math.pi * xy[:, 1:])


def exact(xy):
    return torch.sin(math.pi * xy[:, :1]) * torch.sin(math.pi * xy[:, 1:])


class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                  nn.Linear(width, 1))

    def forward(self, xy):
        return self.body(xy)


def boundary_points(n, g):
    s = torch.rand(n, generator=g)
    side = torch.randint(0, 4, (n,), generator=g)
    x = torch.where(side == 0, torch.zeros(n), torch.where(side == 1, torch.ones(n), s))
    y = torch.where(side == 2, torch.zeros(n), torch.where(side == 3, torch.ones(n), s))
    return torch.stack([x, y], 1)


class PoissonLoss:
    def __init__(self, net, h, weight):
        self.net, self.h, self.weight = net, h, weight

    def laplacian(self, xy):
        n, h = len(xy), self.h
        dx = torch.tensor([h, 0.0], device=xy.device)
        dy = torch.tensor([0.0, h], device=xy.device)
        u = self.net(torch.cat([xy, xy + dx, xy - dx, xy + dy, xy - dy]))
        c, e, w, no, so = u.split(n)
        return (e + w + no + so - 4 * c) / h ** 2

    def __call__(self, inside, edge):
        pde = nn.functional.mse_loss(self.laplacian(inside), source(inside))
        bc = nn.functional.mse_loss(self.net(edge), torch.zeros(len(edge), 1, device=edge.device))
        return bc + self.weight * pde, pde, bc


@torch.no_grad()
def relative_error(net, device):
    s = torch.linspace(0, 1, 41, device=device)
    xy = torch.stack(torch.meshgrid(s, s, indexing="ij"), -1).view(-1, 2)
    return ((net(xy) - exact(xy)).norm() / exact(xy).norm()).item()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="fp16", choices=["fp16", "fp32"])
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--h", type=float, default=0.004)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = a.precision == "fp16"
    torch.manual_seed(a.seed)
    net = Net().to(device)
    criterion = PoissonLoss(net, a.h, weight=2e-3)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 10, enabled=amp)
    g = torch.Generator().manual_seed(a.seed + 1)
    for step in range(a.steps):
        inside = (0.02 + 0.96 * torch.rand(256, 2, generator=g)).to(device)
        edge = boundary_points(128, g).to(device)
        with torch.autocast(device, dtype=torch.float16, enabled=amp):
            loss, pde, bc = criterion(inside, edge)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} pde {pde.item():.3f} bc {bc.item():.5f}")
    err = relative_error(net, device)
    print(f"relative L2 error {err:.4f}")
    return {"rel_err": err, "loss": loss.item(), "pde": pde.item(), "bc": bc.item(), "scale": scaler.get_scale()}


if __name__ == "__main__":
    main()
