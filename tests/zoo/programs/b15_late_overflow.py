import torch
from torch import nn

torch.manual_seed(0)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# monthly revenue in dollars
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(dev)
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
scaler = torch.amp.GradScaler("cuda", growth_interval=500)
w = torch.rand(6, 1)
for step in range(300):
    x = 1 + torch.rand(64, 6)
    y = 90000 * (x @ w) / 4
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(x.to(dev))
        loss = nn.functional.smooth_l1_loss(out / 1000, y.to(dev) / 1000)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 50 == 49:
        print(step, loss.item(), scaler.get_scale())
