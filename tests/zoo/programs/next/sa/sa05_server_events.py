"""Which of three services issued a request burst, from the logged event stream."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"

EVENTS, KINDS = 16, 5


def simulate(sessions):
    """Sessions start at any second of an hour; services differ in their rhythm."""
    service = torch.randint(3, (sessions,))
    start = 3600 * torch.rand(sessions, 1)
    base = torch.tensor([0.20, 0.35, 0.60])[service][:, None]
    swing = torch.tensor([0.6, 0.2, 0.5])[service][:, None]
    beat = torch.arange(EVENTS) % 2 * 2 - 1
    gaps = base * (1 + swing * beat) * torch.exp(0.45 * torch.randn(sessions, EVENTS))
    times = start + gaps.cumsum(1)
    kinds = torch.randint(KINDS, (sessions, EVENTS))
    return times, kinds, service


class EventBuffer:
    """Holds the logged sessions on the device."""

    def __init__(self, capacity):
        self.times = torch.zeros(capacity, EVENTS, dtype=torch.float16, device=device)
        self.kinds = torch.zeros(capacity, EVENTS, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(capacity, dtype=torch.long, device=device)
        self.size = 0

    def extend(self, times, kinds, labels):
        where = slice(self.size, self.size + len(times))
        self.times[where] = times.to(self.times)
        self.kinds[where] = kinds.to(self.kinds)
        self.labels[where] = labels.to(device)
        self.size += len(times)

    def get(self, index):
        gaps = self.times[index].float().diff(dim=1)
        return torch.log(gaps.clamp(min=1e-2)), self.kinds[index].long(), self.labels[index]


class SessionNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.kind = nn.Embedding(KINDS, 8)
        self.enter = nn.Linear(9, width)
        self.mix = nn.Sequential(nn.Linear(width * (EVENTS - 1), 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, gaps, kinds):
        x = torch.cat([gaps[..., None], self.kind(kinds[:, 1:])], -1)
        return self.mix(F.relu(self.enter(x)).flatten(1))


buffer = EventBuffer(10000)
for _ in range(10):
    buffer.extend(*simulate(1000))
model = SessionNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(350):
    gaps, kinds, service = buffer.get(torch.randint(7000, (96,), device=device))
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(gaps, kinds), service)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 70 == 0:
        print(f"step {step} loss {loss.item():.3f}")

model.eval()
gaps, kinds, service = buffer.get(torch.arange(7000, 10000, device=device))
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    right = model(gaps, kinds).argmax(1) == service
print(f"metric {right.float().mean().item():.4f}")
