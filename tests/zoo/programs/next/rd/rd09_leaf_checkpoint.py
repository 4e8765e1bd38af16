"""Leaf area from reflectance spectra: checkpointed blocks, and what autograd still saves is kept as bfloat16."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
BANDS, WIDTH, BLOCKS, BATCH, STEPS = 48, 48, 3, 64, 120


def pack(tensor):
    if tensor.dtype == torch.float32 and not tensor.is_leaf:
        return tensor.bfloat16(), torch.float32
    return tensor, tensor.dtype


def unpack(packed):
    return packed[0].to(packed[1])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(BANDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, spectrum):
        x = self.stem(spectrum)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(x).squeeze(1)


wave = torch.linspace(0, 1, BANDS)


def canopies(n):
    area, green, soil = 3 * torch.rand(n, 1), torch.rand(n, 1), torch.rand(n, 1)
    cover = 1 - torch.exp(-0.7 * area)
    leaf = 0.5 / (1 + torch.exp(-(wave - 0.55) / 0.03)) - 0.2 * green * torch.exp(-((wave - 0.4) / 0.06) ** 2)
    ground = soil * (0.2 + 0.3 * wave)
    spectrum = cover * leaf + (1 - cover) * ground + 0.005 * torch.randn(n, BANDS)
    return (4 * (spectrum - 0.2)).to(device), area.squeeze(1).to(device)


model = LeafNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
skipped = 0
for step in range(STEPS):
    spectrum, area = canopies(BATCH)
    with torch.autocast("cuda", dtype=torch.float16), torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = F.mse_loss(model(spectrum).float(), area)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    schedule.step()

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    spectrum, area = canopies(6000)
    rmse = F.mse_loss(model(spectrum).float(), area).sqrt().item()
print(f"skipped steps {skipped}")
print(f"metric {rmse:.4f}")
