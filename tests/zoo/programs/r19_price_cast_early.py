"""Next-minute return sign and size from raw index prices."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Prices(Dataset):
    def __init__(self, n=4000, window=16, seed=0):
        rng = np.random.default_rng(seed)
        r = np.zeros(n)
        for i in range(2, n):
            r[i] = 0.75 * r[i - 1] - 0.35 * r[i - 2] + rng.normal() * 1.5
        p = 19000 + np.cumsum(r - 0.002 * np.cumsum(r))
        self.p = torch.from_numpy(p.astype(np.float16))  # the cache on disk is fp16
        self.w = window

    def __len__(self):
        return len(self.p) - self.w - 1

    def __getitem__(self, i):
        x = self.p[i : i + self.w].float()
        return (x - x[-1]) / 3.0, (self.p[i + self.w].float() - x[-1]) / 3.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv1d(1, 16, 3)
        self.f = nn.Sequential(nn.Flatten(), nn.Linear(16 * 14, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.f(torch.relu(self.c(x[:, None])))[:, 0]


torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
dl = DataLoader(Prices(), batch_size=64, shuffle=True, drop_last=True)
net = Model().to(dev)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(dev)
for epoch in range(2):
    s = v = 0.0
    for x, y in dl:
        x, y = x.to(dev), y.to(dev)
        with torch.autocast(dev, dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        s, v = s + loss.item(), v + y.square().mean().item()
    print(f"epoch {epoch} mse {s / len(dl):.4f} explained {1 - s / v:.3f}")
