import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), Block(32), Block(32), nn.LayerNorm(32), nn.Linear(32, 5))
model = model.to(device=device, dtype=torch.bfloat16)
opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
w = torch.randn(16, 5)
for step in range(200):
    x = torch.randn(64, 16)
    y = (x @ w).argmax(1)
    logits = model(x.to(device, torch.bfloat16))
    loss = nn.functional.cross_entropy(logits.float(), y.to(device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 49:
        print(step, loss.item())
