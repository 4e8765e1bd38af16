"""Road traffic forecast with a GRU that runs through the day in chunks; training is interrupted and resumed."""
import io
import math

import torch
from torch import nn

torch.manual_seed(29)
device = "cuda" if torch.cuda.is_available() else "cpu"
SENSORS, CHUNK, CHUNKS, HIDDEN, SESSIONS, PASSES = 128, 12, 6, 48, 4, 7


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, HIDDEN)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, series, hidden):
        out = []
        for step in range(series.shape[1]):
            hidden = self.cell(series[:, step], hidden)
            out.append(self.head(hidden))
        return torch.cat(out, dim=1), hidden


def days(count):
    """Flow, relative to the capacity, and the clock; the target is the flow of the next quarter of an hour."""
    clock = torch.arange(CHUNK * CHUNKS + 1) / 48 * 2 * math.pi
    rush = 0.5 + 0.4 * torch.sin(clock + 2 * math.pi * torch.rand(count, 1)) * torch.rand(count, 1)
    jam = torch.zeros(count, len(clock))
    for t in range(1, len(clock)):
        jam[:, t] = 0.9 * jam[:, t - 1] + 0.05 * torch.randn(count)
    flow = rush + jam
    angle = clock[:-1].expand(count, -1)
    return torch.stack([flow[:, :-1], angle.sin(), angle.cos()], dim=2).to(device), flow[:, 1:].to(device)


def build():
    model = Forecast().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    return model, optimizer, torch.amp.GradScaler("cuda", init_scale=2.0**13)


def save(*parts):
    buffer = io.BytesIO()
    torch.save([part.state_dict() for part in parts], buffer)
    return buffer.getvalue()


def resume(data):
    parts = build()
    for part, state in zip(parts, torch.load(io.BytesIO(data), map_location=device)):
        part.load_state_dict(state)
    return parts


saved = save(*build())
for session in range(SESSIONS):
    model, optimizer, scaler = resume(saved)
    for _ in range(PASSES):
        series, target = days(SENSORS)
        hidden = torch.zeros(SENSORS, HIDDEN, dtype=torch.float16, device=device)
        for chunk in range(CHUNKS):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            with torch.autocast("cuda", dtype=torch.float16):
                predicted, hidden = model(series[:, part], hidden)
            loss = nn.functional.mse_loss(predicted.float(), target[:, part])
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            hidden = hidden.detach().half()  # carried into the next chunk
    saved = save(model, optimizer, scaler)

model, _, _ = resume(saved)
series, target = days(1024)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    hidden = torch.zeros(1024, HIDDEN, dtype=torch.float16, device=device)
    predicted, _ = model(series, hidden)
error = (predicted.float() - target)[:, CHUNK:].square().mean().sqrt()
print("metric", round(error.item(), 4))
