# Sparse autoencoder on spectra: reconstruction through the loss scale, sparsity penalty added with its own backward.
import torch, torch.nn as nn

torch.manual_seed(193)
device = "cuda" if torch.cuda.is_available() else "cpu"
loss_scale = 1024.0


class SAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(40, 64), nn.Linear(64, 40)

    def forward(self, x):
        code = torch.relu(self.enc(x))
        return self.dec(code), code


sae = SAE().to(device)
opt = torch.optim.Adam(sae.parameters(), lr=2e-3)
atoms = torch.randn(12, 40)
for it in range(250):
    x = ((torch.rand(128, 12) < 0.2).float() @ atoms + 0.05 * torch.randn(128, 40)).to(device)
    with torch.autocast(device, dtype=torch.float16):
        rec, code = sae(x)
        mse = nn.functional.mse_loss(rec, x)
        sparsity = 0.05 * code.float().abs().sum(1).mean()
    opt.zero_grad()
    (mse * loss_scale).backward(retain_graph=True)
    sparsity.backward()
    finite = True
    for p in sae.parameters():
        p.grad /= loss_scale
        finite = finite and bool(torch.isfinite(p.grad).all())
    if finite:
        opt.step()
    if it % 50 == 0 or it == 249:
        print(f"{it} mse {mse.item():.4f} active {(code > 0.01).float().mean().item():.3f}")
