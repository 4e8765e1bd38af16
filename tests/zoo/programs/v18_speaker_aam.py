"""Speaker embedding training: TDNN + additive angular margin; loss scaling written by hand (ported from an old toolkit)."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class TDNN(nn.Module):
    def __init__(self, feat=20, emb=32):
        super().__init__()
        self.l1 = nn.Conv1d(feat, 48, 5)
        self.l2 = nn.Conv1d(48, 48, 3, dilation=2)
        self.fc = nn.Linear(96, emb)

    def forward(self, x):
        h = F.relu(self.l2(F.relu(self.l1(x)))).float()
        return self.fc(torch.cat([h.mean(-1), (h.var(-1) + 1e-5).sqrt()], 1))


class AAMSoftmax(nn.Module):
    def __init__(self, emb, n, m=0.1, s=16.0):
        super().__init__()
        self.proto = nn.Parameter(torch.randn(n, emb))
        self.m, self.s = m, s

    def forward(self, e, y):
        cos = F.normalize(e.float()) @ F.normalize(self.proto).t()
        theta = torch.acos(cos.float().clamp(-0.999, 0.999))
        logits = self.s * torch.cos(theta + self.m * F.one_hot(y, cos.shape[1]))
        return F.cross_entropy(logits, y)


class LossScale:
    def __init__(self, init=4096.0, window=500):
        self.value, self.window, self.good = init, window, 0

    def unscale(self, params):
        finite = True
        for p in params:
            p.grad.div_(self.value)
            finite &= bool(torch.isfinite(p.grad).all())
        return finite

    def update(self, finite):
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good == self.window:
            self.value, self.good = self.value * 2, 0


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    gen = torch.Generator().manual_seed(6)
    voices = torch.randn(24, 20, generator=gen)
    net, crit = TDNN().to(device), AAMSoftmax(32, 24).to(device)
    scale = LossScale()
    opt = torch.optim.SGD([{"params": net.parameters(), "lr": 0.05}, {"params": crit.parameters(), "lr": 0.1}], momentum=0.9)
    hits = n = 0
    for step in range(1, 201):
        y = torch.randint(0, 24, (48,), generator=gen)
        x = (voices[y][:, :, None] * 1.0 + torch.randn(48, 20, 40, generator=gen)).to(device)
        y = y.to(device)
        with torch.autocast(device, dtype=torch.float16):
            emb = net(x)
            loss = crit(emb, y)
        opt.zero_grad()
        (loss * scale.value).backward()
        finite = scale.unscale(net.parameters())
        if finite:
            opt.step()
        scale.update(finite)
        with torch.no_grad():
            hits += ((F.normalize(emb.float()) @ F.normalize(crit.proto).t()).argmax(1) == y).sum().item()
            n += 48
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} acc {hits / n:.3f} |proto| {crit.proto.norm().item():.1f}")
            hits = n = 0


if __name__ == "__main__":
    main()
