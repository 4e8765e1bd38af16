import torch
from torch import nn

torch.manual_seed(0)
dev = torch.device("cuda")
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(dev)
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")
for it in range(30):
    x = torch.randn(64, 8)
    y = 10 * x.sum(1, keepdim=True)
    with torch.autocast("cuda", dtype=torch.float16):
        pred = net(x.to(dev))
        loss = nn.functional.mse_loss(pred, y.to(dev))
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 10 == 0:
        print(it, loss.item(), scaler.get_scale())
