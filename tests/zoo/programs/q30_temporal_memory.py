import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)

NUM_NODES, STEPS, BATCH, DIM = 400, 240, 128, 16
HALF_LIFE = 40.0


class NodeMemory(nn.Module):
    def __init__(self, num_nodes, dim):
        super().__init__()
        self.register_buffer("state", torch.zeros(num_nodes, dim, dtype=torch.float16))
        self.register_buffer("last_seen", torch.zeros(num_nodes, dtype=torch.float16))

    @torch.no_grad()
    def write(self, nodes, values, now):
        self.state[nodes] = values.to(self.state.dtype)
        self.last_seen[nodes] = now.to(self.last_seen.dtype)

    def read(self, nodes, now):
        return self.state[nodes].float(), now - self.last_seen[nodes].float()


class TimeEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("rates", torch.logspace(-2.5, 0.0, dim))

    def forward(self, delta):
        return torch.exp(-delta.clamp(min=0.0)[:, None] * self.rates)


class EventModel(nn.Module):
    def __init__(self, num_nodes, dim):
        super().__init__()
        self.memory = NodeMemory(num_nodes, dim)
        self.time = TimeEncoder(dim)
        self.message = nn.Linear(2, dim)
        self.body = nn.Sequential(nn.Linear(3 * dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, src, feat, now):
        mem, delta = self.memory.read(src, now)
        msg = torch.tanh(self.message(feat))
        h = self.body(torch.cat([mem, self.time(delta), msg], dim=1))
        return self.out(h).squeeze(1), msg


def event_stream(generator):
    clock = torch.zeros(NUM_NODES)
    start = 20000.0
    for _ in range(STEPS):
        src = torch.randperm(NUM_NODES, generator=generator)[:BATCH]
        now = start + torch.rand(BATCH, generator=generator) * 40.0
        feat = torch.randn(BATCH, 2, generator=generator)
        gap = now - clock[src]
        y = 2.0 * torch.exp(-gap / HALF_LIFE) + 0.3 * feat[:, 0]
        clock[src] = now
        start += 40.0
        yield src.to(device), feat.to(device), now.to(device), y.to(device)


model = EventModel(NUM_NODES, DIM).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")

history = []
for step, (src, feat, now, y) in enumerate(event_stream(torch.Generator().manual_seed(5))):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        pred, msg = model(src, feat, now)
        loss = F.mse_loss(pred, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    model.memory.write(src, msg.detach(), now)
    history.append(loss.item())
    if step % 40 == 39:
        print(f"step {step + 1:4d}  mse {sum(history[-40:]) / 40:.4f}")

print(f"last 40 events batches: mse {sum(history[-40:]) / 40:.4f}")
