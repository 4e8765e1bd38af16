import torch, copy
from torch import nn
import torch.nn.functional as F

# ReLoRA on a forecasting backbone: train rank-4 factors, fold them into the backbone every few steps, start new factors.
device = "cuda" if torch.cuda.is_available() else "cpu"


class FoldingLinear(nn.Module):
    def __init__(self, dense, rank=4, alpha=8):
        super().__init__()
        self.weight = nn.Parameter(dense.weight.detach().to(torch.bfloat16), requires_grad=False)
        self.bias = nn.Parameter(dense.bias.detach().to(torch.bfloat16), requires_grad=False)
        self.down = nn.Parameter(torch.empty(rank, dense.in_features))
        self.up = nn.Parameter(torch.zeros(dense.out_features, rank))
        self.gain = alpha / rank
        nn.init.kaiming_uniform_(self.down, a=5 ** 0.5)

    def forward(self, x):
        base = F.linear(x, self.weight, self.bias)
        return base + self.gain * F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def fold(self):
        delta = self.gain * self.up @ self.down
        self.weight.add_(delta.to(self.weight.dtype))
        nn.init.kaiming_uniform_(self.down, a=5 ** 0.5)
        self.up.zero_()


class Forecaster(nn.Module):
    def __init__(self, window=48, width=96):
        super().__init__()
        self.enc = nn.Linear(window, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 12)

    def forward(self, x):
        return self.out(F.gelu(self.mid(F.gelu(self.enc(x)))))


def load_curves(n, gen, shift):
    """Electric load: daily shape plus weekly drift; `shift` moves the evening peak (new region)."""
    t = torch.arange(60).float()[None] + torch.randint(0, 24, (n, 1), generator=gen)
    amp = 0.6 + torch.rand(n, 1, generator=gen)
    y = amp * torch.sin(2 * torch.pi * (t - shift) / 24) + 0.5 * amp * torch.cos(4 * torch.pi * (t + 2 * shift) / 24)
    y = y + 0.05 * torch.randn(n, 60, generator=gen)
    return y[:, :48].to(device), y[:, 48:].to(device)


def pretrain(gen):
    net = Forecaster().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(150):
        x, y = load_curves(256, gen, shift=0.0)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
    print(f"backbone ready, loss {loss.item():.4f}")
    return net


torch.manual_seed(2)
gen = torch.Generator().manual_seed(8)
net = pretrain(gen)
for name in ("enc", "mid", "out"):
    setattr(net, name, FoldingLinear(getattr(net, name)))
net.to(device)
factors = [p for p in net.parameters() if p.requires_grad]
opt = torch.optim.SGD(factors, lr=0.02)
vx, vy = load_curves(2000, torch.Generator().manual_seed(77), shift=2.5)


def validate():
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        return F.mse_loss(net(vx).float(), vy).item()


print(f"before adapting {validate():.4f}")
for step in range(1, 241):
    x, y = load_curves(256, gen, shift=2.5)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = F.mse_loss(net(x).float(), y)
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 2 == 0:
        for layer in (net.enc, net.mid, net.out):
            layer.fold()
    if step % 60 == 0:
        print(f"step {step}: val {validate():.4f}")
print(f"final val {validate():.4f}")
