"""Own static loss scale, as in the old NVIDIA tutorials."""
import torch
from torch import nn

torch.manual_seed(0)
LOSS_SCALE = 1024.0
dev = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 4)).to(dev)
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
w = torch.randn(24, 4)
for it in range(100):
    x = torch.randn(64, 24)
    y = (x @ w).argmax(1)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x.to(dev))
        loss = nn.functional.cross_entropy(out, y.to(dev))
    opt.zero_grad()
    (loss * LOSS_SCALE).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for p in model.parameters():
        p.grad.div_(LOSS_SCALE)
    opt.step()
    if it % 25 == 24:
        print(it, loss.item())
