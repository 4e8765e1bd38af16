"""Temporal graph memory network for irregular reports of a network of weather stations.

Every station reports now and then. Between two reports the temperature anomaly relaxes towards the climate of the
station, on top of a daily wave; the network has to predict the value of the next report from its memory of the station
and of the neighbours, and from the time that has passed.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(7)

N_STATIONS = 128
N_STEPS = 360
BATCH = 64
HOURS_PER_STEP = 24.0
MEM = 16
N_TEST = 60


def make_stream():
    """Reports in order of time: (stations, hours since the first of January, values)."""
    climate = torch.randn(N_STATIONS) * 0.5
    inertia = 20.0 + 30.0 * torch.rand(N_STATIONS)
    value = climate + torch.randn(N_STATIONS)
    last = torch.zeros(N_STATIONS)
    stream = []
    for step in range(N_STEPS + N_TEST):
        who = torch.randperm(N_STATIONS)[:BATCH]
        when = (step + torch.rand(BATCH)) * HOURS_PER_STEP
        gap = when - last[who]
        decay = torch.exp(-gap / inertia[who])
        wave = torch.cos(2 * math.pi * gap / 24.0)
        now = climate[who] + (value[who] - climate[who]) * decay + 0.8 * wave + 0.05 * torch.randn(BATCH)
        stream.append((who, when, now))
        value[who] = now - 0.8 * wave
        last[who] = when
    static = torch.stack([climate, inertia / 50.0], dim=1)
    return stream, static


class TimeEncoding(nn.Module):
    """Harmonics of the gap since the last report, with learned frequencies."""

    def __init__(self, size):
        super().__init__()
        periods = torch.logspace(math.log10(8.0), math.log10(200.0), size)
        periods[size // 2] = 24.0
        self.omega = nn.Parameter(2 * math.pi / periods)
        self.phase = nn.Parameter(torch.zeros(size))

    def forward(self, gap):
        return torch.cos(gap[:, None] * self.omega + self.phase)


class StationMemory(nn.Module):
    def __init__(self, n_stations, mem):
        super().__init__()
        self.time = TimeEncoding(12)
        self.cell = nn.GRUCell(1 + 12 + 2, mem)
        self.read = nn.Sequential(nn.Linear(mem + 12 + 3, 64), nn.SiLU(), nn.Linear(64, 48), nn.SiLU(), nn.Linear(48, 1))
        # per-station state: it is large for the real network, so it is kept small per entry
        self.register_buffer("memory", torch.zeros(n_stations, mem, dtype=torch.float16))
        self.register_buffer("last_value", torch.zeros(n_stations, dtype=torch.float16))
        self.register_buffer("last_seen", torch.zeros(n_stations, dtype=torch.float16))

    def forward(self, who, when, static):
        gap = when - self.last_seen[who]
        enc = self.time(gap)
        damp = torch.exp(-gap / 35.0)[:, None]
        inputs = [self.memory[who].to(enc.dtype), enc, static[who], damp * self.last_value[who].float()[:, None]]
        return self.read(torch.cat(inputs, dim=1)).squeeze(1), enc

    def observe(self, who, when, value, enc, static):
        message = torch.cat([value[:, None], enc, static[who]], dim=1)
        state = self.cell(message, self.memory[who].to(message.dtype))
        with torch.no_grad():
            self.memory[who] = state.to(self.memory.dtype)
            self.last_value[who] = value.to(self.last_value.dtype)
            self.last_seen[who] = when.to(self.last_seen.dtype)
        return state


stream, static = make_stream()
static = static.to(device)
model = StationMemory(N_STATIONS, MEM).to(device)
aux = nn.Linear(MEM, 1).to(device)  # the memory is trained to hold the last report
params = list(model.parameters()) + list(aux.parameters())
opt = torch.optim.AdamW(params, lr=4e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, N_STEPS, eta_min=2e-4)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

running = None
for step in range(N_STEPS):
    who, when, value = (x.to(device) for x in stream[step])
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        pred, enc = model(who, when, static)
        loss = F.mse_loss(pred, value)
        state = model.observe(who, when, value, enc.detach(), static)
        loss_mem = F.mse_loss(aux(state).squeeze(1), value)
        total = loss + 0.2 * loss_mem
    scaler.scale(total).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(params, 2.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
    if step % 60 == 0:
        print(f"day {step:4d}  next-report mse {running:.4f}  memory mse {loss_mem.item():.4f}")

model.eval()
errors = []
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for who, when, value in stream[N_STEPS:]:
        who, when, value = who.to(device), when.to(device), value.to(device)
        pred, enc = model(who, when, static)
        errors.append((pred.float() - value).square())
        model.observe(who, when, value, enc, static)
rmse = torch.cat(errors).mean().sqrt().item()
print(f"final metric: {rmse:.5f}")
