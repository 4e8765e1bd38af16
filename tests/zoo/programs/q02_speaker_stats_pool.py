import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"

SPEAKERS, MELS, FRAMES = 10, 24, 50
BATCH, SILENT, STEPS = 20, 2, 180
voice_mean = torch.randn(SPEAKERS, MELS) * 0.15
voice_std = 0.8 + 0.5 * torch.rand(SPEAKERS, MELS)


def batch(n):
    spk = torch.randint(0, SPEAKERS, (n,))
    x = voice_mean[spk][:, None] + voice_std[spk][:, None] * torch.randn(n, FRAMES, MELS)
    x[:SILENT] = 0.0
    spk[:SILENT] = SPEAKERS
    return x.transpose(1, 2).to(device), spk.to(device)


class StatsPool(nn.Module):
    def forward(self, h):
        mu = h.mean(dim=-1)
        std = h.var(dim=-1).clamp(min=1e-9).sqrt()
        return torch.cat([mu, std], dim=1)


class XVector(nn.Module):
    def __init__(self, width=40, emb=32):
        super().__init__()
        self.tdnn1 = nn.Conv1d(MELS, width, 3)
        self.tdnn2 = nn.Conv1d(width, width, 3, dilation=2)
        self.tdnn3 = nn.Conv1d(width, width, 1)
        self.pool = StatsPool()
        self.embed = nn.Linear(2 * width, emb)
        self.classify = nn.Linear(emb, SPEAKERS + 1)

    def forward(self, x):
        h = F.relu(self.tdnn1(x))
        h = F.relu(self.tdnn2(h))
        h = F.relu(self.tdnn3(h))
        e = self.embed(self.pool(h))
        return self.classify(F.relu(e))


model = XVector().to(device)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10)

for step in range(STEPS):
    feats, spk = batch(BATCH)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(feats), spk)
    scaler.scale(loss).backward()
    for p in model.parameters():
        torch.nan_to_num(p.grad, nan=0.0, posinf=0.0, neginf=0.0, out=p.grad)
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(opt)
    scaler.update()
    if step % 30 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    feats, spk = batch(300)
    pred = model(feats).argmax(-1)
print("speaker accuracy", (pred == spk).float().mean().item())
