"""Node regression on a graph with hubs."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def star_graph(n=16000, hubs=4):
    dst = torch.randint(0, hubs, (n,))
    src = torch.arange(n) % (n - hubs) + hubs
    extra = torch.randint(hubs, n, (2, n))
    return torch.cat([src, extra[0]]), torch.cat([dst, extra[1]]), n


class SumConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.msg, self.self_ = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x, src, dst):
        m = F.softplus(self.msg(x))[src]
        m = m.half()  # index_add_ wants the dtype of the buffer
        agg = torch.zeros(x.shape[0], m.shape[1], dtype=m.dtype, device=x.device).index_add_(0, dst, m * 60)
        return torch.log1p(agg.float()) + self.self_(x)


class GNN(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.c1, self.out = SumConv(8, d), nn.Linear(d, 1)

    def forward(self, x, s, t):
        return self.out(F.relu(self.c1(x, s, t))).squeeze(-1)


def main():
    torch.manual_seed(7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    s, t, n = star_graph()
    s, t = s.to(device), t.to(device)
    deg = torch.zeros(n, device=device).index_add_(0, t, torch.ones(len(t), device=device))
    y = torch.log1p(deg)
    net = GNN().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler(device, init_scale=256.0)
    for i in range(50):
        x = torch.rand(n, 8, device=device)
        with torch.autocast(device, dtype=torch.float16):
            p = net(x, s, t)
            loss = F.mse_loss(p.float()[:4], y[:4]) + F.mse_loss(p.float()[4:], y[4:])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print("loss", loss.item(), "scale", scaler.get_scale())


main()
