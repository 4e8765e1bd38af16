import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backbone = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()).to(device)
head = nn.Linear(32, 4).to(device)
opt_backbone = torch.optim.SGD(backbone.parameters(), lr=0.1, momentum=0.9)
opt_head = torch.optim.SGD(head.parameters(), lr=0.2, momentum=0.9)
scaler = torch.cuda.amp.GradScaler(init_scale=4096.0)
params = list(backbone.parameters()) + list(head.parameters())
w = torch.randn(16, 4)
for i in range(120):
    x = torch.randn(64, 16)
    y = (x @ w).argmax(1).to(device)
    opt_backbone.zero_grad()
    opt_head.zero_grad()
    with torch.cuda.amp.autocast():
        loss = nn.functional.cross_entropy(head(backbone(x.to(device))), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt_backbone)
    nn.utils.clip_grad_norm_(params, max_norm=1.0)
    scaler.step(opt_backbone)
    scaler.step(opt_head)
    scaler.update()
    if i % 30 == 29:
        print(i, loss.item())
