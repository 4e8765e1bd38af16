"""Mineral dissolution: learn rate constants and initial contents from time series of released tracer."""
import math
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(8)
YEAR = 3.156e7  # s
N_SAMPLES, N_FEAT, N_TIMES = 600, 10, 20
times = torch.linspace(0.5, 40, N_TIMES, device=device)  # years


def make_data():
    g = torch.Generator().manual_seed(21)
    f = torch.randn(N_SAMPLES, N_FEAT, generator=g)
    w1, w2 = torch.randn(N_FEAT, generator=g) / 3, torch.randn(N_FEAT, generator=g) / 3
    log10k = -8.8 + 0.6 * torch.tanh(f @ w1) + 0.2 * torch.sin(2 * f[:, 0])  # 1/s
    c0 = 1.0 + 0.4 * torch.sigmoid(f @ w2)
    k = 10 ** log10k[:, None] * YEAR
    released = c0[:, None] * (1 - torch.exp(-k * times.cpu()))
    return f, released + 0.005 * torch.randn(released.shape, generator=g), log10k


class CompressedActivations(torch.autograd.graph.saved_tensors_hooks):
    """Keep what autograd saves in half precision; about a third less peak memory on the big runs."""

    def __init__(self):
        def pack(t):
            if t.dtype == torch.float32 and t.dim() > 1 and not isinstance(t, nn.Parameter):
                return t.to(torch.float16), t.dtype
            return t, t.dtype

        def unpack(packed):
            t, dtype = packed
            return t.to(dtype)

        super().__init__(pack, unpack)


class KineticsNet(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.rate_net = nn.Sequential(nn.Linear(N_FEAT, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 1))
        self.content_net = nn.Sequential(nn.Linear(N_FEAT, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 1))
        self.ln_k_ref = math.log(10 ** -8.8)

    def forward(self, f, t):
        ln_k = self.ln_k_ref + self.rate_net(f).float()
        k = torch.exp(ln_k)  # 1/s
        c0 = nn.functional.softplus(self.content_net(f).float() + 1.0)
        return c0 * (1 - torch.exp(-(k * YEAR) * t)), ln_k


f, y, log10k = [t.to(device) for t in make_data()]
n_train = 500
model = KineticsNet().to(device)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler(device)

for step in range(150):
    idx = torch.randint(0, n_train, (128,), device=device)
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.float16), CompressedActivations():
        pred, _ = model(f[idx], times)
        loss = nn.functional.mse_loss(pred, y[idx])
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 25 == 0 or step == 149:
        print(f"step {step:4d}  loss {loss.item():.5f}")

model.eval()
with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    pred, ln_k = model(f[n_train:], times)
rmse = (pred - y[n_train:]).pow(2).mean().sqrt().item()
err_k = (ln_k.squeeze(1) / math.log(10) - log10k[n_train:]).abs().mean().item()
print(f"held out: rmse {rmse:.4f}, mean error of log10 k {err_k:.3f}")
