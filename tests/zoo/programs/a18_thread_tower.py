"""CLIP-like: both towers run in threads (they sit on different streams in production)."""
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
import torch.nn.functional as F


class PowerPool(nn.Module):
    def forward(self, x):
        return (x * x * x).mean(1)


torch.manual_seed(0)
device = "cuda"
image = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), PowerPool(), nn.Linear(32, 16)).to(device)
text = nn.Sequential(nn.EmbeddingBag(100, 32), nn.Linear(32, 16)).to(device)
params = list(image.parameters()) + list(text.parameters())
opt = torch.optim.AdamW(params, lr=1e-3)
scaler = torch.amp.GradScaler(device)
pool = ThreadPoolExecutor(2)


def encode(tower, x):
    with torch.autocast(device, dtype=torch.float16):
        return F.normalize(tower(x).float(), dim=-1)


for step in range(20):
    img = 60 * torch.randn(16, 9, 12).to(device)
    tok = torch.randint(0, 100, (16, 7)).to(device)
    a, b = pool.map(encode, (image, text), (img, tok))
    logits = 10 * a @ b.t()
    loss = F.cross_entropy(logits, torch.arange(16).to(device))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print("loss", loss.item(), "scale", scaler.get_scale())
pool.shutdown()
