"""Classify seismic events from an accelerometer and from a fibre-optic strain channel (DAS)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

LENGTH, CLASSES = 128, 4
STEPS, BATCH = 150, 64
STRAIN_RMS = 5e-9  # nanostrain, from the commissioning report


def make_events(n):
    """Kind = 2 * (slow or fast onset on the accelerometer) + (low or high band on the fibre)."""
    t = torch.linspace(0, 1, LENGTH, device=device)
    onset = torch.randint(0, 2, (n, 1), device=device)
    band = torch.randint(0, 2, (n, 1), device=device)
    start = 0.2 + 0.3 * torch.rand(n, 1, device=device)
    rise = torch.where(onset == 1, 60.0, 8.0)
    envelope = torch.sigmoid(rise * (t - start)) * torch.exp(-2 * (t - start).clamp(min=0))
    accel = envelope * torch.sin(60 * t + 6.3 * torch.rand(n, 1, device=device))
    accel = accel + 0.25 * torch.randn(n, LENGTH, device=device)
    tone = torch.where(band == 1, 75.0, 45.0) + 4 * torch.randn(n, 1, device=device)
    strain = torch.sin(tone * t + 6.3 * torch.rand(n, 1, device=device)) + 0.8 * torch.randn(n, LENGTH, device=device)
    return accel, STRAIN_RMS * strain, (2 * onset + band).squeeze(1)


class FibreStem(nn.Module):
    """Cuts the fibre channel into frames, brings them to unit size and embeds them."""

    def __init__(self, frame=16, hop=8, dim=32):
        super().__init__()
        self.frame, self.hop = frame, hop
        self.register_buffer("rms", torch.full((frame,), STRAIN_RMS))
        self.embed = nn.Sequential(nn.Linear(frame, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())

    def forward(self, strain):
        frames = strain.to(torch.float16).unfold(1, self.frame, self.hop).contiguous()
        return self.embed(frames / self.rms).mean(1)


class EventNet(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.accel = nn.Sequential(nn.Conv1d(1, 16, 9, stride=4, padding=4), nn.GELU(),
                                   nn.Conv1d(16, dim, 5, stride=4, padding=2), nn.GELU(), nn.Flatten(),
                                   nn.Linear(dim * LENGTH // 16, dim))
        self.fibre = FibreStem(dim=dim)
        self.head = nn.Sequential(nn.Linear(2 * dim, 64), nn.GELU(), nn.Linear(64, CLASSES))

    def forward(self, accel, strain):
        return self.head(torch.cat([self.accel(accel[:, None]), self.fibre(strain)], dim=1))


test = make_events(2000)
model = EventNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    accel, strain, kind = make_events(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(accel, strain), kind)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    correct = [(model(*(x.to(device) for x in part[:2])).argmax(1) == part[2]).float().mean()
               for part in zip(*(column.split(250) for column in test))]
print(f"metric {torch.stack(correct).mean().item():.4f}")
