"""VQ autoencoder for frame-level units (all-positive log-mel style inputs)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, K = 16, 64


class Quantizer(nn.Module):
    def __init__(self, k, dim):
        super().__init__()
        self.codebook = nn.Parameter(9.0 + 0.25 * torch.randn(k, dim))

    def forward(self, z):
        zz = z.pow(2).sum(1, keepdim=True)
        ee = self.codebook.pow(2).sum(1)
        d = zz + ee - 2 * torch.matmul(z, self.codebook.t())
        idx = d.argmin(1)
        q = self.codebook[idx]
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), idx, loss


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(DIM, DIM)
        nn.init.eye_(self.lin.weight)
        nn.init.zeros_(self.lin.bias)

    def forward(self, x):
        return self.lin(x)


centers = 9.0 + 0.25 * torch.randn(K, DIM)


def frames(n):
    return (centers[torch.randint(0, K, (n,))] + 0.08 * torch.randn(n, DIM)).to(device)


enc, vq = Encoder().to(device), Quantizer(K, DIM).to(device)
dec = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM)).to(device)
opt_enc = torch.optim.Adam(enc.parameters(), lr=1e-4)
opt_vq = torch.optim.SGD(vq.parameters(), lr=8.0)
opt_dec = torch.optim.Adam(dec.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device.type, init_scale=512.0)

for step in range(120):
    x = frames(512)
    with torch.autocast(device.type, dtype=torch.float16):
        z = enc(x)
        q, idx, vq_loss = vq(z)
        rec = dec(q)
        loss = F.l1_loss(rec, x) + vq_loss
    for o in (opt_enc, opt_vq, opt_dec):
        o.zero_grad()
    scaler.scale(loss).backward()
    for o in (opt_enc, opt_vq, opt_dec):
        scaler.step(o)
    scaler.update()
    if step % 40 == 39:
        print(step, "rec+vq %.4f" % loss.item(), "vq %.5f" % vq_loss.item(), "used", idx.unique().numel())
