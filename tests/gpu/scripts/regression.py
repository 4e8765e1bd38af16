"""Linear layers in fp16 on targets in large units: the squared error overflows half precision at first."""

import torch
from torch import nn

torch.use_deterministic_algorithms(mode=True)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device, init_scale=2.0**20, growth_interval=10)
x = torch.randn(512, 16).to(device)
y = 300 * x[:, :1] + 50

for step in range(30):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        out = model(x)
        loss = ((out - y) ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
