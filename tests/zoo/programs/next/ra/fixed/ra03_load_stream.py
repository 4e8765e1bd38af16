"""Online forecast of the electric load of twelve substations, read as one long stream in chunks of eight hours."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.bfloat16
SITES, CHUNK, CHUNKS = 12, 32, 350  # quarter hours
DAY, WEEK = 96, 672

shape_day = torch.randn(SITES, 3) * torch.tensor([1.0, 0.5, 0.3])
shape_week = torch.randn(SITES, 1) * 0.4
sensitivity = torch.empty(SITES, 1).uniform_(0.2, 0.6)


def read_chunk(index):
    """Outdoor temperature and load of all sites for the quarter hours of a chunk."""
    t = index * CHUNK + torch.arange(CHUNK)
    day = torch.stack([torch.sin(2 * math.pi * k * t / DAY + k) for k in (1, 2, 3)])
    week = torch.sin(2 * math.pi * t / WEEK)[None]
    temperature = torch.randn(SITES, 1) + 0.1 * torch.randn(SITES, CHUNK)
    load = shape_day @ day + shape_week @ week - sensitivity * temperature + 0.05 * torch.randn(SITES, CHUNK)
    return temperature.to(device), load.to(device)


class LoadModel(nn.Module):
    """Site embedding, weather and calendar features; the position in the stream is kept between chunks."""

    def __init__(self, width=64, site_dim=12):
        super().__init__()
        self.site = nn.Embedding(SITES, site_dim)
        periods = [DAY, DAY / 2, DAY / 3, WEEK]
        self.register_buffer("omega", torch.tensor([2 * math.pi / p for p in periods]))
        self.register_buffer("clock", torch.zeros(()))
        self.net = nn.Sequential(
            nn.Linear(site_dim + 1 + 2 * len(periods), width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1),
        )

    def calendar(self, length):
        t = self.clock + torch.arange(length, device=self.omega.device, dtype=self.clock.dtype)
        angle = t[:, None] * self.omega
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    def forward(self, temperature):
        sites, length = temperature.shape
        calendar = self.calendar(length)[None].expand(sites, -1, -1)
        site = self.site.weight[:, None].expand(-1, length, -1)
        out = self.net(torch.cat([site, temperature[..., None], calendar], dim=2))
        self.clock += length
        return out.squeeze(-1)


model = LoadModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
late_errors = []

for index in range(CHUNKS):
    temperature, load = read_chunk(index)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        pred = model(temperature)
        loss = F.mse_loss(pred, load)
    loss.backward()
    optimizer.step()
    if index >= CHUNKS - 100:  # each chunk is scored before it is learnt
        late_errors.append(loss.item())
    if index % 100 == 99:
        print(f"chunk {index + 1} loss {loss.item():.4f}")

print(f"metric {math.sqrt(sum(late_errors) / len(late_errors)):.4f}")
