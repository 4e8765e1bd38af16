"""Fault detection from sensor windows; the slope of the score with respect to the input is penalised (double backward)."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F


class Windows:
    """Four channels of 16 samples; a fault is a decaying transient with a phase relation between two channels."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(16).float()
        self.y = torch.randint(0, 2, (n,), generator=g)
        phase = 6.283 * torch.rand(n, 1, generator=g)
        amp = 0.8 + 0.6 * torch.rand(n, 1, generator=g)
        lag = torch.where(self.y[:, None] == 1, 0.9, -0.9) + 0.3 * torch.randn(n, 1, generator=g)
        wave = amp * torch.sin(0.7 * t + phase)
        other = amp * torch.sin(0.7 * t + phase + lag) * torch.exp(-0.03 * t)
        x = torch.stack([wave, other, 0.5 * wave - 0.5 * other, torch.zeros(n, 16)], 1)
        self.x = x + 0.5 * torch.randn(n, 4, 16, generator=g)

    def take(self, n, g):
        i = torch.randint(0, len(self.y), (n,), generator=g)
        return self.x[i], self.y[i].float()


class Detector(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inp = nn.Linear(64, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = F.silu(self.inp(x.flatten(1)))
        for layer in self.mid:
            h = h + F.silu(layer(h))
        return self.out(self.norm(h)).squeeze(-1)


class SlopePenalty:
    """Mean squared slope of the score; differentiates the scaled batch mean and undoes factor and batch in float32."""

    def __init__(self, model, scaler):
        self.model, self.scaler = model, scaler

    def __call__(self, x):
        x = x.detach().requires_grad_()
        score = self.model(x)
        lead = self.scaler.scale(score.float().mean())
        slope = torch.autograd.grad(lead, x, create_graph=True)[0]
        slope = slope.float() * len(x) / self.scaler.get_scale()
        return slope.flatten(1).pow(2).sum(1).mean(), score


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="fp16", choices=["fp16", "fp32"])
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--weight", type=float, default=0.02)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = a.precision == "fp16"
    train, test = Windows(20000, seed=1), Windows(4000, seed=2)
    torch.manual_seed(a.seed)
    model = Detector().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 11, enabled=amp)
    slope = SlopePenalty(model, scaler)
    g = torch.Generator().manual_seed(a.seed + 5)
    for step in range(a.steps):
        x, y = (t.to(device) for t in train.take(a.batch, g))
        with torch.autocast(device, dtype=torch.float16, enabled=amp):
            steep, score = slope(x)
            loss = F.binary_cross_entropy_with_logits(score, y) + a.weight * steep
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} slope {steep.item():.4f} scale {scaler.get_scale():g}")
    with torch.autocast(device, dtype=torch.float16, enabled=amp):
        steep, score = slope(test.x.to(device))
    y = test.y.to(device)
    ce = F.binary_cross_entropy_with_logits(score.float(), y.float()).item()
    acc = ((score > 0) == (y == 1)).float().mean().item()
    print(f"test accuracy {acc:.4f} ce {ce:.4f} slope {steep.item():.4f}")
    return {"accuracy": acc, "ce": ce, "slope": steep.item(), "scale": scaler.get_scale()}


if __name__ == "__main__":
    main()
