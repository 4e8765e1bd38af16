import threading

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
a = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
b = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
opt = torch.optim.AdamW([*a.parameters(), *b.parameters()], lr=1e-3)
scaler = torch.amp.GradScaler(device)
mix = torch.randn(12, 20)


def encode(net, x, out, i):
    with torch.autocast(device, dtype=torch.float16):
        out[i] = F.normalize(net(x), dim=-1)


for step in range(30):
    u = torch.randn(32, 12)
    v = u @ mix + 0.1 * torch.randn(32, 20)
    out = [None, None]
    threads = [threading.Thread(target=encode, args=(n, x.to(device), out, i)) for i, (n, x) in enumerate(((a, u), (b, v)))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    with torch.autocast(device, dtype=torch.float16):
        logits = 10 * out[0] @ out[1].t()
        loss = F.cross_entropy(logits, torch.arange(32).to(device))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print("loss", loss.item(), "scale", scaler.get_scale())
