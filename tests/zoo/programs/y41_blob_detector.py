"""One-object detector: class of the blob in the main thread, box regression in a side worker."""
import logging
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("detector")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(2)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.cls = nn.Linear(16 * 16, 2)
        self.box = nn.Sequential(nn.Linear(16 * 16, 32), nn.ReLU(), nn.Linear(32, 2))


class Trainer:
    def __init__(self, model, use_amp=True):
        self.model, self.use_amp = model, use_amp
        self.opt = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.scaler = torch.amp.GradScaler(device, enabled=use_amp)
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.dropped = 0

    def box_loss(self, feat, centre):
        try:
            return F.smooth_l1_loss(self.model.box(feat).float(), centre)
        except RuntimeError as e:            # a crop without an object must not stop the run
            self.dropped += 1
            log.debug("box branch skipped: %s", e)
            return None

    def step(self, img, kind, centre):
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16, enabled=self.use_amp):
            feat = self.model.backbone(img)
            fut = self.pool.submit(self.box_loss, feat, centre)
            loss = F.cross_entropy(self.model.cls(feat), kind)
        lb = fut.result()
        if lb is not None:
            loss = loss + lb
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


def scene(n):
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    c = torch.rand(n, 2) * 10 + 3
    kind = torch.randint(0, 2, (n,))
    r = ((yy - c[:, 0, None, None]).abs() + (xx - c[:, 1, None, None]).abs())
    r2 = ((yy - c[:, 0, None, None]) ** 2 + (xx - c[:, 1, None, None]) ** 2).sqrt() * 1.3
    img = torch.where(kind[:, None, None] == 0, torch.exp(-r), torch.exp(-r2 / 2))
    return (img + 0.05 * torch.randn(n, 16, 16))[:, None].to(device), kind.to(device), (c / 16).to(device)


if __name__ == "__main__":
    tr = Trainer(Detector().to(device))
    for it in range(200):
        loss = tr.step(*scene(48))
        if it % 50 == 0:
            print(f"it {it} loss {loss:.4f}")
    img, kind, centre = scene(256)
    with torch.no_grad():
        f = tr.model.backbone(img)
        err = (tr.model.box(f) - centre).abs().mean().item() * 16
        acc = (tr.model.cls(f).argmax(1) == kind).float().mean().item()
    print(f"FINAL loss={loss:.4f} acc={acc:.3f} centre_error_px={err:.2f}")
    tr.pool.shutdown()
