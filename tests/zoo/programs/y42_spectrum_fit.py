# Fit a small network to a measured absorption spectrum with L-BFGS (full batch).
import torch
import torch.nn as nn

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"
AMP = True
SCALE = 2.0 ** 15 if AMP else 1.0


def spectrum(nu):
    out = torch.zeros_like(nu)
    for pos, width, height in [(-0.6, 0.12, 0.9), (-0.1, 0.2, 0.5), (0.35, 0.09, 0.7), (0.7, 0.15, 0.4)]:
        out = out + height / (1 + ((nu - pos) / width) ** 2)
    return out


nu = torch.linspace(-1, 1, 256, device=device)[:, None]
target = spectrum(nu)

feats = torch.cat([torch.cos(nu * k) for k in range(8)] + [torch.sin(nu * k) for k in range(1, 8)], 1)
net = nn.Sequential(nn.Linear(15, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, history_size=10, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16, enabled=AMP):
        loss = nn.functional.mse_loss(net(feats), target)
    (loss * SCALE).backward()      # scaled: the gradients of the first layer are below 1e-5
    return loss


for epoch in range(25):
    loss = opt.step(closure)
    if epoch % 5 == 0:
        print(f"epoch {epoch:3d}  calls {calls:4d}  mse {loss.item():.6f}")

with torch.no_grad():
    final = nn.functional.mse_loss(net(feats), target).item()
print(f"FINAL loss={final:.6f}")
