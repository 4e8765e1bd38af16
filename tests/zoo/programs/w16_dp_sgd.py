# Differentially private SGD on a table: per-row gradients are clipped one by one and summed in a low-precision buffer.
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
CLIP, SIGMA, BATCH, LR = 1.0, 0.3, 2048, 0.5

model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
names = [n for n, _ in model.named_parameters()]
opt = torch.optim.SGD(model.parameters(), lr=LR)
truth = torch.randn(10)


def one_loss(params, x, y):
    out = functional_call(model, params, (x.unsqueeze(0),)).squeeze()
    return nn.functional.smooth_l1_loss(out.float(), y)


per_row = vmap(grad(one_loss), in_dims=(None, 0, 0))


class PrivateSum:
    """Accumulates clipped per-row gradients; the buffer is small so that large models fit."""

    def __init__(self, params):
        self.buf = [torch.zeros(p.shape, dtype=torch.bfloat16, device=p.device) for p in params]

    def add(self, rows):
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in rows]).norm(dim=0)
        w = (CLIP / (norm + 1e-6)).clamp(max=1.0)
        for b, g in zip(self.buf, rows):
            g = g * w.view(-1, *[1] * (g.dim() - 1))
            for row in g.to(b.dtype):
                b += row

    def release(self, n):
        return [(b.float() + SIGMA * CLIP * torch.randn_like(b, dtype=torch.float32)) / n for b in self.buf]


def batch():
    x = torch.randn(BATCH, 10)
    y = x @ truth + 9.0
    return x.to(device), y.to(device)


losses = []
for step in range(14):
    x, y = batch()
    opt.zero_grad()
    acc = PrivateSum(model.parameters())
    params = {n: p.detach() for n, p in model.named_parameters()}
    for part in range(0, BATCH, 256):
        g = per_row(params, x[part:part + 256], y[part:part + 256])
        acc.add([g[n] for n in names])
    for p, s in zip(model.parameters(), acc.release(BATCH)):
        p.grad = s
    opt.step()
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        losses.append(nn.functional.smooth_l1_loss(model(x).squeeze(-1).float(), y).item())
print(f"first {losses[0]:.4f} last five {sum(losses[-5:]) / 5:.4f}")
