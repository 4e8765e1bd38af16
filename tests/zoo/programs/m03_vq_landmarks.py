"""Soft vector quantisation of map coordinates to learnable landmarks, memory saved by recomputing the assignment."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
AMP = dict(device_type=device, dtype=torch.float16)


class Remat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *tensors):
        ctx.fn = fn
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return fn(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in ctx.saved_tensors]
        with torch.enable_grad(), torch.autocast(**AMP):
            out = ctx.fn(*inputs)
        out = out.to(grads[0].dtype)
        return (None,) + torch.autograd.grad(out, inputs, grads)


def assign(points, centres, log_temp):
    d = points.pow(2).sum(-1, keepdim=True) + centres.pow(2).sum(-1) - 2 * points @ centres.t()
    return F.softmax(-d * log_temp.exp(), dim=-1)


class LandmarkModel(nn.Module):
    """Predicts land price from the soft membership of a location in learnable landmarks and from house features."""

    def __init__(self, first, dim_house=10):
        super().__init__()
        self.centres = nn.Parameter(first.clone())
        self.log_temp = nn.Parameter(torch.tensor(-1.0))
        self.value = nn.Linear(len(first), 16)
        self.house = nn.Sequential(nn.Linear(dim_house, 32), nn.ReLU(), nn.Linear(32, 16))
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(16, 1))

    def forward(self, where, house):
        with torch.autocast(device, enabled=False):
            member = Remat.apply(assign, where.float(), self.centres, self.log_temp)
        return self.out(self.value(member) + self.house(house)).squeeze(-1)


class Region:
    """Coordinates in kilometres from the survey office (easting, northing)."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.towns = torch.tensor([101.0, 77.0]) + torch.randn(12, 2, generator=self.g) * 6
        self.worth = torch.randn(12, generator=self.g) * 2

    def sample(self, n):
        k = torch.randint(0, 12, (n,), generator=self.g)
        where = self.towns[k] + torch.randn(n, 2, generator=self.g) * 1.5
        house = torch.randn(n, 10, generator=self.g)
        near = torch.softmax(-torch.cdist(where, self.towns) ** 2 / 4, -1)
        price = near @ self.worth + 0.5 * house[:, 0] + 0.3 * house[:, 1].abs()
        return where.to(device), house.to(device), price.to(device)


def train(steps=200):
    torch.manual_seed(9)
    region = Region(31)
    first, _, _ = region.sample(24)
    model = LandmarkModel(first).to(device)
    groups = [{"params": [model.centres], "lr": 0.05}, {"params": [p for n, p in model.named_parameters() if n != "centres"]}]
    opt = torch.optim.Adam(groups, lr=5e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2048.0)
    for step in range(steps):
        where, house, price = region.sample(128)
        with torch.autocast(**AMP):
            loss = F.mse_loss(model(where, house).float(), price)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 40 == 0 or step == steps - 1:
            print(f"{step:4d} mse {loss.item():.4f} temperature {model.log_temp.exp().item():.3f}")


if __name__ == "__main__":
    train()
