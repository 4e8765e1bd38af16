import torch
from torch import nn


class LossScaler:
    def __init__(self, scale=2.0**18, window=40):
        self.scale, self.window, self.good = scale, window, 0

    def update(self, overflow):
        self.good = 0 if overflow else self.good + 1
        if overflow:
            self.scale /= 2
        elif self.good == self.window:
            self.scale, self.good = self.scale * 2, 0


torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
ls, steps = LossScaler(), 0
for i in range(100):
    x = torch.randn(32, 10)
    y = (x[:, 0] > 0).long()
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    (loss.float() * ls.scale).backward()
    overflow = any(not torch.isfinite(p.grad).all() for p in model.parameters())
    if not overflow:
        for p in model.parameters():
            p.grad /= ls.scale
        optimizer.step()
        steps += 1
    ls.update(overflow)
print("steps taken", steps, "loss", loss.item(), "scale", ls.scale)
