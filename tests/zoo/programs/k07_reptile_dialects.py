"""Few-shot adaptation to a new speaker: first-order meta-training over many speakers (Reptile)."""
import torch
from torch import nn
from torch.func import functional_call, grad

device = "cuda" if torch.cuda.is_available() else "cpu"
STORE = torch.bfloat16


class Speaker:
    """Pitch contour of one speaker as a function of position, stress and tone."""

    def __init__(self, gen):
        self.base = 0.5 + 0.2 * torch.randn(1, generator=gen)
        self.span = 1.0 + 0.3 * torch.randn(1, generator=gen)
        self.fall = 0.8 + 0.2 * torch.randn(1, generator=gen)
        self.phase = 0.6 * torch.rand(1, generator=gen)

    def draw(self, n, gen):
        x = torch.rand(n, 3, generator=gen) * 2 - 1
        y = self.base + self.span * torch.sin(3 * x[:, :1] + self.phase) * (1 + x[:, 1:2]) - self.fall * x[:, :1] * x[:, 2:]
        return x.to(device), y.to(device)


model = None


def loss_fn(params, x, y):
    with torch.autocast(device, dtype=torch.bfloat16):
        out = functional_call(model, params, (x,))
    return (out.float() - y).square().mean()


def adapt(start, speaker, gen, steps=5, lr=0.05, n=32):
    fast = {k: v.float() for k, v in start.items()}
    first = None
    for _ in range(steps):
        x, y = speaker.draw(n, gen)
        g = grad(loss_fn)(fast, x, y)
        first = g if first is None else first
        fast = {k: v - lr * g[k] for k, v in fast.items()}
    return fast, first


def evaluate(meta, gen):
    total = 0.0
    for _ in range(20):
        s = Speaker(gen)
        fast, _ = adapt(meta, s, gen, steps=5)
        total += loss_fn(fast, *s.draw(256, gen)).item()
    return total / 20


def main():
    global model
    torch.manual_seed(31)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    gen = torch.Generator().manual_seed(32)
    meta = {k: p.detach().to(STORE) for k, p in model.named_parameters()}
    for step in range(180):
        moved = {k: torch.zeros_like(v, dtype=torch.float32) for k, v in meta.items()}
        for _ in range(2):
            fast, first = adapt(meta, Speaker(gen), gen)
            for k in meta:
                moved[k] += (fast[k] - meta[k]) / 2
        rate = 0.05
        for k in meta:
            meta[k].add_(moved[k], alpha=rate)
        if step % 60 == 0:
            print(f"step {step:3d} after adaptation {evaluate(meta, torch.Generator().manual_seed(5)):.4f}")
    final = evaluate(meta, torch.Generator().manual_seed(6))
    print(f"new speakers, five steps: {final:.4f}")
    return final


if __name__ == "__main__":
    main()
