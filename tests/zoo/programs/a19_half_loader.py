import queue
import threading

import torch
from torch import nn


def producer(q, n):
    """Depth maps in millimetres; halved here so that the copy to the GPU is cheap."""
    g = torch.Generator().manual_seed(0)
    for _ in range(n):
        depth = 20000 + 60000 * torch.rand(8, 1, 16, 16, generator=g)
        label = (depth.mean((1, 2, 3)) > 50000).long()
        q.put((depth.half(), label))
    q.put(None)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.cuda.amp.GradScaler()
q = queue.Queue(4)
threading.Thread(target=producer, args=(q, 20), daemon=True).start()
while (item := q.get()) is not None:
    depth, label = item
    x = depth.to(device).float() / 80000
    with torch.cuda.amp.autocast():
        loss = nn.functional.cross_entropy(model(x), label.to(device))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item(), scaler.get_scale())
