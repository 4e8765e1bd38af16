"""Small image classifier; loss scaling by hand, starting from a very large factor, clipping afterwards."""
import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class HandScale:
    """Doubles the factor after a run of good steps and quarters it after a bad one."""

    def __init__(self, start, patience, enabled):
        self.value, self.patience, self.enabled = (start if enabled else 1.0), patience, enabled
        self.good = self.dropped = 0

    def backward(self, loss):
        (loss.float() * self.value).backward()

    def step(self, opt, params, max_norm):
        norms = torch.stack([p.grad.float().norm() for p in params])
        if not math.isfinite(norms.sum().item()):
            self.value /= 4.0
            self.good, self.dropped = 0, self.dropped + 1
            return False
        for p in params:
            p.grad.div_(self.value)
        nn.utils.clip_grad_norm_(params, max_norm)
        opt.step()
        self.good += 1
        if self.enabled and self.good == self.patience:
            self.value, self.good = self.value * 2.0, 0
        return True


class Squeeze(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a, self.b = nn.Linear(ch, ch // 4), nn.Linear(ch // 4, ch)

    def forward(self, x):
        s = torch.sigmoid(self.b(F.relu(self.a(x.mean((2, 3))))))
        return x * s[:, :, None, None]


class Stage(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.GroupNorm(4, cout), nn.GroupNorm(4, cout)
        self.se = Squeeze(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride)

    def forward(self, x):
        h = F.relu(self.n1(self.conv1(x)))
        return F.relu(self.skip(x) + self.se(self.n2(self.conv2(h))))


class SmallNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(Stage(3, 12, 1), Stage(12, 16, 2), Stage(16, 24, 2))
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def textures(n, size, classes, seed):
    """Every class is a small motif, tiled, shifted at random and covered with noise."""
    world = torch.Generator().manual_seed(61)
    motif = torch.randn(classes, 3, 4, 4, generator=world).repeat(1, 1, size // 4, size // 4)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    shift = torch.randint(0, 4, (n, 2), generator=g).tolist()
    x = torch.stack([motif[k].roll((i, j), (1, 2)) for k, (i, j) in zip(y.tolist(), shift)])
    return 0.5 * x + 0.9 * torch.randn(n, 3, size, size, generator=g), y


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="fp16", choices=["fp16", "fp32"])
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--scale", type=float, default=2.0 ** 22)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = a.precision == "fp16"
    x, y = textures(3000, 12, 4, seed=1)
    xt, yt = textures(1000, 12, 4, seed=2)
    torch.manual_seed(a.seed)
    model = SmallNet(4).to(device)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=3e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=a.steps)
    scaling = HandScale(a.scale, 60, amp)
    g = torch.Generator().manual_seed(a.seed + 2)
    for step in range(a.steps):
        idx = torch.randint(0, len(y), (48,), generator=g)
        with torch.autocast(device, dtype=torch.float16, enabled=amp):
            loss = F.cross_entropy(model(x[idx].to(device)), y[idx].to(device))
        opt.zero_grad(set_to_none=True)
        scaling.backward(loss)
        done = scaling.step(opt, params, 1.0)
        sched.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} factor {scaling.value:g} {'ok' if done else 'dropped'}")
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16, enabled=amp):
        z = model(xt.to(device)).float().cpu()
    acc = (z.argmax(1) == yt).float().mean().item()
    print(f"test accuracy {acc:.4f} dropped {scaling.dropped}")
    return {"accuracy": acc, "ce": F.cross_entropy(z, yt).item(), "dropped": scaling.dropped, "factor": scaling.value}


if __name__ == "__main__":
    main()
