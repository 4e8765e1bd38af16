import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Retrieval attention: sharp, and without 1/sqrt(d)."""

    def __init__(self, d, gain):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.gain = gain

    def forward(self, x):
        s = self.q(x) * self.gain @ self.k(x).transpose(1, 2)
        return x + s.softmax(-1) @ self.v(x)


class Model(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Linear(8, d)
        self.layers = nn.ModuleList([Attention(d, 1.0), Attention(d, 1.0), Attention(d, 12.0)])
        self.out = nn.Linear(d, 2)

    def forward(self, x):
        x = self.emb(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.out(x.mean(1))


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = Model().to(device)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cuda")
for i in range(15):
    x = 60 * torch.randn(16, 10, 8)
    y = (x[:, :, 0].amax(1) > 90).long()
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print(loss.item(), scaler.get_scale())
