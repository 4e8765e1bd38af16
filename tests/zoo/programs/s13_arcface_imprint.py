"""ArcFace on imprinted class weights."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 8, 3, 2), nn.Conv2d(8, 16, 3, 2)
        self.fc = nn.Linear(16 * 9, 32)

    def forward(self, x):
        return self.fc(F.leaky_relu(self.c2(F.leaky_relu(self.c1(x)))).flatten(1))


class ArcFace(nn.Module):
    def __init__(self, d, n, s=16.0, m=0.2, eps=1e-7):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, d))
        self.s, self.m, self.eps = s, m, eps

    def forward(self, e, y):
        cos = F.linear(F.normalize(e), F.normalize(self.weight))
        cos = cos.clamp(-1 + self.eps, 1 - self.eps)
        theta = torch.acos(cos)
        hot = F.one_hot(y, cos.shape[1]).bool()
        logits = torch.where(hot & (theta < math.pi - self.m), torch.cos(theta + self.m), cos.float())
        return F.cross_entropy(self.s * logits, y)


net, head = Backbone().to(device), ArcFace(32, 10).to(device)
gallery = torch.randn(10, 1, 16, 16, device=device)
with torch.no_grad():
    head.weight.copy_(net(gallery))  # imprint: the first exemplar of each class is its weight
opt = torch.optim.SGD([{"params": net.parameters()}, {"params": head.parameters(), "lr": 1e-3}], lr=1e-3, momentum=0.9)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
for it in range(60):
    y = torch.arange(10, device=device).repeat(4)
    x = gallery[y] + 0.8 * torch.randn(40, 1, 16, 16, device=device) * (torch.arange(40, device=device) >= 10).float()[:, None, None, None]
    with torch.autocast(device, dtype=torch.float16):
        loss = head(net(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 20 == 0:
        print(it, loss.item(), scaler.get_scale())
print("end", loss.item(), scaler.get_scale())
