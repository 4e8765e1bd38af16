"""Pen strokes with a recurrent mixture density network, after Graves (2013)."""
import math
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)
K, HID, T, B = 5, 48, 32, 32


def strokes(n):
    t = torch.arange(T + 1).float()[None]
    w = torch.rand(n, 1) * 0.5 + 0.4
    ph = torch.rand(n, 1) * 6.28
    size = torch.rand(n, 1) * 0.6 + 0.6
    x = 0.25 * t + size * 0.6 * torch.sin(w * t + ph)
    y = size * torch.cos(w * t + ph) + 0.3 * torch.sin(2.1 * w * t)
    pos = torch.stack([x, y], -1) + 0.02 * torch.randn(n, T + 1, 2)
    return (pos[:, 1:] - pos[:, :-1]) / 0.4


class Cell(nn.Module):
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.gates = nn.Linear(n_in + n_hid, 4 * n_hid)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = self.gates(torch.cat([x, h.to(x.dtype)], 1)).float().chunk(4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class Scribe(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell(2, HID)
        self.mix = nn.Linear(HID, K * 5)

    def forward(self, x):
        h = c = x.new_zeros(len(x), HID)
        outs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            if h.requires_grad:
                h.register_hook(lambda g: g.clamp(-1.0, 1.0))
            outs.append(h)
        return self.mix(torch.stack(outs, 1)).float()


def nll(p, y):
    logit, mx, my, sx, sy = p.split(K, -1)
    logit = torch.log_softmax(logit, -1)
    sx, sy = sx.clamp(-4, 4), sy.clamp(-4, 4)
    zx, zy = (y[..., :1] - mx) * torch.exp(-sx), (y[..., 1:] - my) * torch.exp(-sy)
    comp = -0.5 * (zx ** 2 + zy ** 2) - sx - sy - math.log(2 * math.pi)
    return -torch.logsumexp(logit + comp, -1)


pool, held = strokes(800).to(device), strokes(200).to(device)
model = Scribe().to(device)
opt = torch.optim.RMSprop(model.parameters(), lr=1.5e-3, alpha=0.95, eps=1e-4, momentum=0.9)
scaler = torch.amp.GradScaler(device)
for it in range(120):
    batch = pool[torch.randint(0, 800, (B,))]
    with torch.autocast(device, dtype=torch.float16):
        out = model(batch[:, :-1])
        loss = nll(out, batch[:, 1:]).sum(1).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    if it % 20 == 0 or it == 119:
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
            v = nll(model(held[:, :-1]), held[:, 1:]).mean()
        print(f"iter {it:3d} train nll/stroke {loss.item() / (T - 1):.3f} held-out {v.item():.3f}")
