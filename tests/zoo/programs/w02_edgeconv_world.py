# Aerial LiDAR: classify roof / ground patches with one EdgeConv layer on a kNN graph.
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
N, B, K, STEPS = 96, 8, 8, 80


def knn(x, k):
    # the usual DGCNN expansion, [B, N, 3] -> [B, N, k]
    inner = torch.bmm(x, x.transpose(1, 2))
    sq = (x * x).sum(-1, keepdim=True)
    d = sq - 2 * inner + sq.transpose(1, 2)
    return d.topk(k, dim=-1, largest=False).indices


class EdgeConv(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, out))

    def forward(self, xyz):
        idx = knn(xyz, K)
        nb = torch.gather(xyz.unsqueeze(1).expand(-1, N, -1, -1), 2, idx.unsqueeze(-1).expand(-1, -1, -1, 3))
        return self.mlp(nb - xyz.unsqueeze(2)).amax(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = EdgeConv(32)
        self.inten = nn.Sequential(nn.Linear(1, 16), nn.ReLU())
        self.cls = nn.Linear(48, 2)

    def forward(self, xyz, intensity):
        e = self.edge(xyz).amax(1)
        i = self.inten(intensity).mean(1)
        return self.cls(torch.cat([e, i.to(e.dtype)], -1))


def tile():
    y = torch.randint(0, 2, (B,))
    xyz = torch.rand(B, N, 3) * torch.tensor([6.0, 6.0, 0.2])
    slope = 0.6 * y.view(B, 1).float()
    xyz[..., 2] += slope * xyz[..., 0]
    xyz += torch.tensor([140.0, 95.0, 30.0])            # metres from the tile corner
    inten = torch.rand(B, N, 1) + 0.15 * y.view(B, 1, 1)
    return xyz.to(dev), inten.to(dev), y.to(dev)


net = Net().to(dev)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(dev)
hits = []
for it in range(STEPS):
    xyz, inten, y = tile()
    opt.zero_grad()
    with torch.autocast(device_type=dev, dtype=torch.float16):
        out = net(xyz, inten)
        loss = F.cross_entropy(out, y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    hits.append((out.argmax(-1) == y).float().mean().item())
print(f"accuracy of the last 20 batches {sum(hits[-20:]) / 20:.3f} loss {loss.item():.3f}")
