"""Masked patches: a student predicts hidden patches, an averaged teacher is what is kept for later use."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)
PATCHES, PIXELS, WIDTH, STEPS, BATCH = 16, 12, 64, 300, 64
MOMENTUM = 0.99


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCHES * (PIXELS + 1), WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.decode = nn.Linear(WIDTH, PATCHES * PIXELS)

    def forward(self, image, hidden):
        seen = image * (~hidden).unsqueeze(-1)
        tokens = torch.cat([seen, hidden.unsqueeze(-1).to(seen.dtype)], -1).flatten(1)
        h = self.embed(tokens)
        h = self.norm(h + self.block(h))
        return self.decode(h).view(-1, PATCHES, PIXELS)


def images(n):
    g = torch.Generator().manual_seed(6)
    basis = torch.randn(6, PATCHES * PIXELS, generator=g)
    image = (torch.randn(n, 6) @ basis / 6**0.5).view(n, PATCHES, PIXELS) + 0.1 * torch.randn(n, PATCHES, PIXELS)
    return image.to(device)


def masks(n):
    return torch.rand(n, PATCHES, device=device) < 0.4


@torch.no_grad()
def follow(teacher, student, momentum):
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.mul_(momentum).add_(new.to(old.dtype), alpha=1 - momentum)


def hidden_error(model, image, hidden, dtype=torch.float32):
    out = model(image.to(dtype), hidden).float()
    return F.mse_loss(out[hidden], image[hidden])


data, test = images(4096), images(1024)
student = Masked().to(device)
teacher = copy.deepcopy(student).bfloat16().requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    image = data[torch.randint(len(data), (BATCH,), device=device)]
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = hidden_error(student, image, masks(BATCH))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    follow(teacher, student, MOMENTUM)

with torch.no_grad():
    hidden = masks(len(test))
    print(f"student {hidden_error(student, test, hidden).item():.4f}")
    print(f"final metric: {hidden_error(teacher, test, hidden, teacher.embed.weight.dtype).item():.4f}")
