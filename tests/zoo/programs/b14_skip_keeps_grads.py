"""A dynamic loss scale by hand, as DeepSpeed has it: skip on overflow, halve, go on."""
import torch
from torch import nn


class LossScaler:
    def __init__(self, scale=2.0**24, window=200):
        self.cur_scale, self.window, self.iter, self.last = scale, window, 0, -1

    def update(self, overflow):
        if overflow:
            self.cur_scale = max(self.cur_scale / 2, 1.0)
            self.last = self.iter
        elif (self.iter - self.last) % self.window == 0:
            self.cur_scale *= 2
        self.iter += 1


torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
ls = LossScaler()
steps = 0
for i in range(60):
    x = torch.randn(32, 10)
    y = (x[:, 0] > 0).long()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    (loss.float() * ls.cur_scale).backward()
    overflow = any(not torch.isfinite(p.grad).all() for p in model.parameters())
    ls.update(overflow)
    if overflow:
        continue
    for p in model.parameters():
        p.grad /= ls.cur_scale
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
print("steps taken", steps, "loss", loss.item(), "scale", ls.cur_scale)
