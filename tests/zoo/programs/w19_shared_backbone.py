"""Detection + segmentation on one backbone. Each task owns an optimizer over (backbone, its head)."""
import itertools
import torch
import torch.nn as nn
import torch.nn.functional as F


class TwoTask(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, w, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1), nn.ReLU())
        self.box = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * w, 4))
        self.mask = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        f = self.backbone(x)
        return self.box(f), self.mask(f)


def blobs(n=16, s=24):
    x = torch.rand(n, 1, s, s) * 0.4
    xy = torch.randint(2, s - 10, (n, 2))
    wh = torch.randint(4, 9, (n, 2))
    m = torch.zeros(n, 1, s, s)
    for i in range(n):
        (a, b), (w, h) = xy[i].tolist(), wh[i].tolist()
        m[i, 0, b:b + h, a:a + w] = 1
    x = x + m
    return x, torch.cat([xy, xy + wh], 1) / s, m[..., ::2, ::2]


class Engine:
    def __init__(self, steps=100):
        torch.manual_seed(14)
        self.dev = "cuda" if torch.cuda.is_available() else "cpu"
        self.net, self.steps = TwoTask().to(self.dev), steps
        bb = list(self.net.backbone.parameters())
        self.opts = [torch.optim.SGD(bb + list(h.parameters()), lr=lr, momentum=0.8)
                     for h, lr in ((self.net.box, 0.002), (self.net.mask, 0.1))]
        self.scaler = torch.amp.GradScaler(self.dev, init_scale=2.0 ** 12)

    def train(self):
        log = []
        for _ in range(self.steps):
            x, b, m = (t.to(self.dev) for t in blobs())
            for o in self.opts:
                o.zero_grad(set_to_none=True)
            with torch.autocast(self.dev, dtype=torch.float16):
                pb, pm = self.net(x)
                box, mask = F.smooth_l1_loss(pb, b), F.binary_cross_entropy_with_logits(pm, m)
            self.scaler.scale(box + mask).backward()
            for o in self.opts:
                self.scaler.step(o)
            self.scaler.update()
            log.append((box.item(), mask.item()))
        b, m = (sum(v) / 20 for v in itertools.islice(zip(*log[-20:]), 2))
        print(f"box {b:.5f} mask {m:.4f}")


Engine().train()
