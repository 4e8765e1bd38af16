"""Identification of a double pendulum's accelerations with an fp16 network and the group's own dynamic loss scaling."""
import torch
import torch.nn as nn

torch.manual_seed(30)
device = "cuda" if torch.cuda.is_available() else "cpu"

HID, BATCH, STEPS = 48, 256, 220


class LossScaler:
    def __init__(self, scale=2.0 ** 24, window=100):
        self.scale, self.window, self.good, self.skipped = scale, window, 0, 0

    def adjust(self, finite):
        if finite:
            self.good += 1
            if self.good % self.window == 0:
                self.scale *= 2.0
        else:
            self.scale /= 2.0
            self.good = 0
            self.skipped += 1


def accelerations(q):
    """two unit masses on unit rods; q = (th1, th2, w1, w2)"""
    a, b, w1, w2 = q.unbind(1)
    d, g = a - b, 9.81
    den = 3.0 - torch.cos(2 * d)
    a1 = (-3 * g * a.sin() - g * (a - 2 * b).sin() - 2 * d.sin() * (w2 ** 2 + w1 ** 2 * d.cos())) / den
    a2 = 2 * d.sin() * (2 * w1 ** 2 + 2 * g * a.cos() + w2 ** 2 * d.cos()) / den
    return torch.stack([a1, a2], dim=1)


def states(n):
    q = torch.rand(n, 4, device=device) * 2 - 1
    return q * torch.tensor([1.2, 1.2, 1.5, 1.5], device=device)


net = nn.Sequential(nn.Linear(4, HID), nn.Tanh(), nn.Linear(HID, HID), nn.Tanh(), nn.Linear(HID, 2)).to(device).half()
master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
opt = torch.optim.AdamW(master, lr=4e-3, weight_decay=1e-4)
scaler = LossScaler()

for step in range(STEPS):
    q = states(BATCH)
    y = accelerations(q) / 10.0
    pred = net(q.half())
    loss = (pred.float() - y).square().mean()
    net.zero_grad(set_to_none=True)
    (loss * scaler.scale).backward()
    for m, p in zip(master, net.parameters()):
        m.grad = p.grad.float() / scaler.scale
    norm = nn.utils.clip_grad_norm_(master, 1.0)
    finite = bool(torch.isfinite(norm))
    if finite:
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, net.parameters()):
                p.copy_(m)
    scaler.adjust(finite)
    if step % 40 == 0 or step == STEPS - 1:
        print(f"step {step:3d} mse {loss.item():.5f} norm {norm.item():.4f} scale 2^{torch.log2(torch.tensor(scaler.scale)).item():.0f} "
              f"skipped {scaler.skipped}")

with torch.no_grad():
    q = states(2048)
    y = accelerations(q) / 10.0
    e = (net(q.half()).float() - y).norm() / y.norm()
print(f"relative acceleration error {e.item():.4f}")
