"""Concentrations' signature in noisy Raman spectra: fit, watch a held-out set, keep the best and stop when it stalls."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS, SPECIES, NOISE = 96, 4, 1.5

axis = torch.linspace(0, 1, CHANNELS, device=device)
centres = torch.rand(SPECIES, 5, 1, device=device)
lines = (torch.rand(SPECIES, 5, 1, device=device) * torch.exp(-(((axis - centres) / 0.03) ** 2))).sum(1)


def spectra(n):
    c = torch.rand(n, SPECIES, device=device)
    clean = 2.0 * torch.tanh(c @ lines) + 0.4 * c[:, :1] * c[:, 1:2] * axis
    return c, clean, clean + NOISE * torch.randn(n, CHANNELS, device=device)


def score(model, c, measured):
    """Mean absolute residual over the held-out spectra."""
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        out = model(c)
        residual = out - measured.to(out.dtype)
        value = residual.abs().mean()
    model.train()
    return value.item()


c_train, _, train = spectra(4096)
c_val, _, val = spectra(1024)
c_test, clean, _ = spectra(1024)

model = nn.Sequential(
    nn.Linear(SPECIES, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, CHANNELS)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
scaler = torch.amp.GradScaler("cuda")

best, kept, wait, patience = float("inf"), None, 0, 6
for step in range(1, 601):
    pick = torch.randint(len(train), (512,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(c_train[pick]), train[pick])
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 5:
        continue
    now = score(model, c_val, val)
    if now < best:
        best, wait = now, 0
        kept = copy.deepcopy(model.state_dict())
    else:
        wait += 1
        if wait >= patience:
            print(f"no better for {patience} checks, stop")
            break
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} held out {now:.5f}")

print(f"stopped after {step} steps, best {best:.5f}")
model.load_state_dict(kept)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    rmse = (model(c_test).float() - clean).square().mean().sqrt().item()
print(f"RESULT {rmse:.5f}")
