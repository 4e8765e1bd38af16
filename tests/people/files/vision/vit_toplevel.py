# quick experiment: tiny ViT, bf16. run me: python vit_toplevel.py
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(0)
device = torch.device("cuda")
BATCH, STEPS, IMG, PATCH, DIM = 16, 40, 32, 8, 64

class PatchEmbed(nn.Module):
    def __init__(self, dim=DIM):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, PATCH, PATCH)
    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)

class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        x = x + self.proj(a)
        return x + self.mlp(self.n2(x))

class ViT(nn.Module):
    def __init__(self, depth=2, heads=4, classes=10):
        super().__init__()
        self.embed = PatchEmbed()
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.randn(1, (IMG // PATCH) ** 2 + 1, DIM) * 0.02)
        self.blocks = nn.ModuleList([Block(DIM, heads) for _ in range(depth)])
        self.head = nn.Linear(DIM, classes)
    def forward(self, x):
        x = self.embed(x)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], 1) + self.pos
        for b in self.blocks: x = b(x)
        return self.head(x[:, 0])

X = torch.randn(256, 3, IMG, IMG)
Y = torch.randint(0, 10, (256,))

model = ViT().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(STEPS):
    idx = torch.randint(0, len(X), (BATCH,))
    xb, yb = X[idx].to(device), Y[idx].to(device)
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(xb), yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
