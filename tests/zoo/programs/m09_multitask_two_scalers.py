"""Driver monitoring: gaze regression + drowsiness classification sharing one trunk.
Each task keeps its own dynamic loss scale since the losses have very different sizes."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicScale:
    def __init__(self, scale, window=40, limit=2.0 ** 16):
        self.scale, self.window, self.limit, self.count = scale, window, limit, 0

    def update(self, overflow):
        if overflow:
            self.scale = max(1.0, self.scale / 2)
            self.count = 0
        else:
            self.count += 1
            if self.count >= self.window:
                self.scale = min(self.limit, self.scale * 2)
                self.count = 0


class Monitor(nn.Module):
    def __init__(self, d_in=40, d=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d_in, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU())
        self.gaze = nn.Linear(d, 2)
        self.drowsy = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        h = self.trunk(x)
        return self.gaze(h), self.drowsy(h)


class Trainer:
    def __init__(self):
        torch.manual_seed(21)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.mix = torch.randn(8, 40) / 2
        self.state = torch.randn(8, 3)
        self.model = Monitor().to(self.device)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scales = {"gaze": DynamicScale(2.0 ** 13), "drowsy": DynamicScale(2.0 ** 8)}

    def batch(self, n=64):
        z = torch.randn(n, 8)
        x = z @ self.mix + 0.1 * torch.randn(n, 40)
        gaze = torch.stack([torch.sin(z[:, 0]) + 0.3 * z[:, 1], torch.tanh(z[:, 2])], 1)
        drowsy = (z @ self.state + 0.3 * z.pow(2) @ self.state.roll(1, 0)).argmax(1)
        return x.to(self.device), gaze.to(self.device), drowsy.to(self.device)

    def unscale(self, scale):
        bad = False
        for p in self.model.parameters():
            p.grad.div_(scale)
            bad = bad or not bool(torch.isfinite(p.grad).all())
        return bad

    def train_step(self):
        x, gaze, drowsy = self.batch()
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast(self.device, dtype=torch.float16):
            pg, pd = self.model(x)
        losses = {"gaze": F.mse_loss(pg.float(), gaze), "drowsy": F.cross_entropy(pd.float(), drowsy)}
        total = sum(losses[k] * self.scales[k].scale for k in losses)
        total.backward()
        overflow = self.unscale(max(s.scale for s in self.scales.values()))
        if not overflow:
            self.opt.step()
        for s in self.scales.values():
            s.update(overflow)
        return losses

    def fit(self, steps):
        for step in range(steps):
            losses = self.train_step()
            if step % 30 == 0 or step == steps - 1:
                print(step, " ".join(f"{k} {v.item():.4f} (x{self.scales[k].scale:.0f})" for k, v in losses.items()))
        with torch.no_grad():
            x, gaze, drowsy = self.batch(2000)
            pg, pd = self.model(x)
            print(f"val gaze mse {F.mse_loss(pg, gaze).item():.4f} drowsy acc {(pd.argmax(1) == drowsy).float().mean().item():.4f}")


if __name__ == "__main__":
    Trainer().fit(200)
