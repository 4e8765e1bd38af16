"""Self-supervised pretraining on sensor rows (variance, invariance, covariance), then a linear probe."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_rows(n, gen, world, classes=8):
    label = torch.randint(0, classes, (n,), generator=gen)
    latent = world["centres"][label] + 0.8 * torch.randn(n, 10, generator=gen)
    rows = torch.tanh(latent @ world["lift"]) + 0.3 * torch.randn(n, 40, generator=gen)
    return rows.to(device), label.to(device)


def corrupt(rows, rate=0.25):
    swap = rows[torch.randperm(len(rows), device=rows.device)]
    keep = torch.rand_like(rows) > rate
    return torch.where(keep, rows, swap) + 0.05 * torch.randn_like(rows)


class Encoder(nn.Module):
    def __init__(self, features=40, width=192, dim=160):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, dim)
        for layer in [self.inp, *self.mid, self.out]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for layer in self.mid:
            h = F.relu(layer(h))
        return F.relu(self.out(h))


def off_diagonal(m):
    n = m.shape[0]
    return m.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class VarianceInvarianceCovariance(nn.Module):
    def __init__(self, sim=25.0, std=25.0, cov=1.0, floor=0.5, eps=1e-4):
        super().__init__()
        self.sim, self.std, self.cov, self.floor, self.eps = sim, std, cov, floor, eps

    def spread(self, z):
        std = torch.sqrt(z.var(dim=0) + self.eps)
        return F.relu(self.floor - std).mean()

    def decorrelate(self, z):
        z = z - z.mean(dim=0)
        c = (z.t() @ z) / (len(z) - 1)
        return off_diagonal(c).pow(2).sum() / z.shape[1]

    def forward(self, a, b):
        inv = F.mse_loss(a, b)
        var = self.spread(a) + self.spread(b)
        cov = self.decorrelate(a) + self.decorrelate(b)
        return self.sim * inv + self.std * var + self.cov * cov


def probe(encoder, train, held, dtype):
    with torch.no_grad(), torch.autocast(device, dtype=dtype):
        a, b = encoder(train[0]).float(), encoder(held[0]).float()
    mean, std = a.mean(0), a.std(0) + 1e-3
    a, b = (a - mean) / std, (b - mean) / std
    onehot = F.one_hot(train[1]).float()
    a1 = torch.cat([a, torch.ones_like(a[:, :1])], 1)
    b1 = torch.cat([b, torch.ones_like(b[:, :1])], 1)
    w = torch.linalg.solve(a1.t() @ a1 + 10 * torch.eye(a1.shape[1], device=a1.device), a1.t() @ onehot)
    return ((b1 @ w).argmax(1) == held[1]).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=210)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(5)
    world = {"centres": torch.randn(8, 10, generator=gen), "lift": torch.randn(10, 40, generator=gen) * 0.6}
    pool = make_rows(20000, gen, world)
    few, held = make_rows(400, gen, world), make_rows(4000, gen, world)

    encoder = Encoder().to(device)
    criterion = VarianceInvarianceCovariance()
    opt = torch.optim.AdamW(encoder.parameters(), lr=1e-3, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device)
    for step in range(args.steps):
        rows = pool[0][torch.randint(0, len(pool[0]), (args.batch,), device=device)]
        with torch.autocast(device, dtype=torch.float16):
            loss = criterion(encoder(corrupt(rows)), encoder(corrupt(rows)))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")

    score = probe(encoder, few, held, torch.float16)
    print(f"linear probe accuracy {score:.4f}")
    return {"probe": score, "loss": loss.item(), "scale": scaler.get_scale(),
            "updates": int(opt.state[encoder.inp.weight]["step"]) if opt.state else 0}


if __name__ == "__main__":
    main()
