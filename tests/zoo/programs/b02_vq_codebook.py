import torch
from torch import nn
import torch.nn.functional as F


class EMAQuantizer(nn.Module):
    def __init__(self, codes, dim, decay=0.999):
        super().__init__()
        self.decay = decay
        e = torch.randn(codes, dim)
        self.register_buffer("embed", e.clone())
        self.register_buffer("total", e.clone())
        self.register_buffer("size", torch.ones(codes))

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1]).to(self.embed.dtype)
        d = torch.cdist(flat.float(), self.embed.float())
        k = d.argmin(1)
        if self.training:
            hot = F.one_hot(k, len(self.embed)).to(flat.dtype)
            with torch.no_grad():
                self.size.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.total.mul_(self.decay).add_(hot.t() @ flat.detach(), alpha=1 - self.decay)
                self.embed.copy_(self.total / self.size.clamp(min=1e-2)[:, None])
        q = self.embed[k].to(z.dtype).view_as(z)
        return z + (q - z).detach(), F.mse_loss(z, q.detach())


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
        self.vq = EMAQuantizer(32, 8)
        self.dec = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x):
        q, commit = self.vq(self.enc(x))
        return self.dec(q), commit


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = VQ().to(device)
model.vq.to(torch.bfloat16)  # saves memory
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
basis = torch.randn(6, 16)
for it in range(300):
    x = (torch.randn(128, 6) @ basis).to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out, commit = model(x)
        loss = F.mse_loss(out, x) + 0.25 * commit
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
