"""Small strain-field regressor; low-frequency gradient amplification (EMA filter over gradients)."""
import torch
from torch import nn

torch.manual_seed(29)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


UNIT = 2e-4


def beam(n):
    load = torch.rand(n, 6) * 2 - 1
    w = torch.linspace(0.2, 1.0, 6)
    strain = UNIT * torch.stack([(load * w.roll(k)).sum(1) + 0.5 * load[:, k] ** 2 for k in range(4)], 1)
    return load.to(device), strain.to(device)


def filtered_(params, store, alpha=0.95, gain=4.0):
    """grad <- grad + gain * ema(grad)"""
    for p in params:
        if p.grad is None:
            continue
        if p not in store:
            store[p] = torch.zeros_like(p, dtype=torch.float16)
        m = store[p]
        m.mul_(alpha).add_(p.grad.to(m.dtype), alpha=1 - alpha)
        p.grad.add_(m.to(p.grad.dtype), alpha=gain)


model = nn.Sequential(nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 4)).to(device)
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=2.5e5)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0 ** 18)
ema = {}
load, strain = beam(2048)

for step in range(120):
    pick = torch.randint(0, len(load), (256,), device=device)
    with torch.autocast(device.type, dtype=torch.float16):
        out = model(load[pick])
        loss = nn.functional.mse_loss(UNIT * out.float(), strain[pick])
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    filtered_(params, ema)
    scaler.step(opt)
    scaler.update()
    if step % 40 == 39:
        size = sum(m.float().norm().item() for m in ema.values())
        print(f"{step + 1}: loss {loss.item():.3e} filter {size:.3e}")
