"""Time to the next elevator call from the gaps before it; the call log is held in 16 bit."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(9)
device = "cuda" if torch.cuda.is_available() else "cpu"

HISTORY, FLOORS = 12, 8


def simulate(traces):
    """Gaps in minutes; calls come in clusters whose pace drifts."""
    pace = torch.randn(traces)
    gaps, floors = [], []
    for _ in range(HISTORY + 1):
        pace = 0.9 * pace + 0.35 * torch.randn(traces)
        floor = torch.randint(FLOORS, (traces,))
        gaps.append(torch.exp(0.7 * pace + 0.15 * (floor == 0) + 0.1 * torch.randn(traces)))
        floors.append(floor)
    return torch.stack(gaps, 1), torch.stack(floors, 1)


class CallLog:
    """Holds the gaps between calls on the device."""

    def __init__(self, capacity):
        self.gaps = torch.zeros(capacity, HISTORY + 1, dtype=torch.float16, device=device)
        self.floors = torch.zeros(capacity, HISTORY + 1, dtype=torch.uint8, device=device)
        self.size = 0

    def extend(self, gaps, floors):
        where = slice(self.size, self.size + len(gaps))
        self.gaps[where] = gaps.to(self.gaps)
        self.floors[where] = floors.to(self.floors)
        self.size += len(gaps)

    def get(self, index):
        log_gaps = torch.log(self.gaps[index].float().clamp(min=1e-3))
        return log_gaps[:, :-1], self.floors[index, :-1].long(), log_gaps[:, -1]


class CallNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.floor = nn.Embedding(FLOORS, 6)
        self.cell = nn.GRUCell(7, width)
        self.out = nn.Linear(width, 1)

    def forward(self, gaps, floors):
        x = torch.cat([gaps[..., None], self.floor(floors)], -1)
        state = torch.zeros(len(x), self.cell.hidden_size, device=x.device)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.out(state).squeeze(-1)


log = CallLog(8000)
for _ in range(8):
    log.extend(*simulate(1000))
model = CallNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(150):
    gaps, floors, target = log.get(torch.randint(6000, (96,), device=device))
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(gaps, floors), target)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

gaps, floors, target = log.get(torch.arange(6000, 8000, device=device))
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(gaps, floors).float() - target).pow(2).mean().sqrt()
print(f"metric {error.item():.4f}")
