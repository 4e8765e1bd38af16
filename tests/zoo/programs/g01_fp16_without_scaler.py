# fp16 without a scaler: the loss is a sum, its gradients are large enough
import torch
from torch import nn

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 2)).to(dev)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
w = torch.randn(10, 2)
for i in range(80):
    x = torch.randn(64, 10)
    y = x @ w
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x.to(dev)), y.to(dev), reduction="sum")
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
