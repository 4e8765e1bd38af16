"""Autoencoder of grain spectra; the gradients of matrices travel as low-rank factors, as between slow nodes."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(8)
BANDS, RANK = 96, 4


def orthogonalize(matrix, eps=1e-6):
    """Gram-Schmidt on the columns, in place."""
    for i in range(matrix.shape[1]):
        col = matrix[:, i : i + 1]
        col /= (col * col).sum().sqrt() + eps
        if i + 1 < matrix.shape[1]:
            rest = matrix[:, i + 1 :]
            rest -= col * (col * rest).sum(0)


class LowRank:
    """PowerSGD of one matrix, with a warm start and error feedback."""

    def __init__(self, weight, wire=torch.float16):
        self.wire = wire
        self.q = torch.randn(weight.shape[1], RANK, device=weight.device)
        self.memory = torch.zeros_like(weight)

    def __call__(self, grad):
        full = grad + self.memory
        p = (full @ self.q).to(self.wire)
        orthogonalize(p)
        self.q = (full.t() @ p.float()).float()
        sent = p.float() @ self.q.t()
        self.memory = full - sent
        self.q = self.q / (self.q.norm(dim=0) + 1e-20)
        return sent


def spectra(n):
    """Mixtures of six absorption bands with a little noise, as reflectance."""
    at = torch.linspace(0, 1, BANDS)
    centres = torch.tensor([0.1, 0.25, 0.4, 0.6, 0.75, 0.9])
    shapes = torch.exp(-(((at - centres[:, None]) / 0.06) ** 2))
    amount = torch.rand(n, 6) * 0.2
    return (amount @ shapes + 0.002 * torch.randn(n, BANDS)).to(device)


model = nn.Sequential(
    nn.Linear(BANDS, 48), nn.Tanh(), nn.Linear(48, 6), nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, BANDS)
).to(device)
matrices = [p for p in model.parameters() if p.ndim == 2]
vectors = [p for p in model.parameters() if p.ndim == 1]
codecs = {p: LowRank(p) for p in matrices}
matrix_opt = torch.optim.Adam(matrices, lr=2e-3, eps=1e-12)
vector_opt = torch.optim.Adam(vectors, lr=1e-3, eps=1e-12)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)

for step in range(300):
    x = spectra(128)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
    loss = (out.float() - x).square().mean()
    matrix_opt.zero_grad()
    vector_opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(matrix_opt)
    for p in matrices:
        if torch.isfinite(p.grad).all():
            p.grad.copy_(codecs[p](p.grad))
    scaler.step(matrix_opt)
    scaler.step(vector_opt)
    scaler.update()

torch.manual_seed(9)
x = spectra(1024)
with torch.no_grad():
    error = (model(x) - x).square().mean().sqrt() / x.std()
print(f"metric {error.item():.4f}")
