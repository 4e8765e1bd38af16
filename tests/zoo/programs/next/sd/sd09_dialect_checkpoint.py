"""Which of five dialects a line of phonemes comes from; transformer with activation checkpointing."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(12)
device = "cuda" if torch.cuda.is_available() else "cpu"
PHONEMES, LENGTH, DIALECTS, WIDTH, STEPS, BATCH = 30, 12, 5, 32, 60, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-2, -1) * (WIDTH // 4) ** -0.5).softmax(dim=-1)
        x = x + self.out((weight @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class Dialect(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(PHONEMES, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, DIALECTS)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x).mean(dim=1))


def lines(count, tables):
    """Lines of a Markov chain over phonemes, one for each dialect."""
    dialect = torch.randint(0, DIALECTS, (count,))
    token = torch.randint(0, PHONEMES, (count,))
    spoken = []
    for _ in range(LENGTH):
        spoken.append(token)
        token = torch.multinomial(tables[dialect, token], 1).squeeze(1)
    return torch.stack(spoken, dim=1).to(device), dialect.to(device)


common = torch.randn(1, PHONEMES, PHONEMES)
tables = (common + 1.3 * torch.randn(DIALECTS, PHONEMES, PHONEMES)).softmax(dim=-1)
train_x, train_y = lines(4096, tables)
test_x, test_y = lines(1024, tables)
model = Dialect().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    rows = torch.randint(0, len(train_x), (BATCH,)).to(device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    right = (model(test_x).argmax(dim=1) == test_y).float().mean()
print("metric", round(1 - right.item(), 4))
