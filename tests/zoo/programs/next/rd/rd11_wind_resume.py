"""Power of a wind turbine; the job is paused and resumed in memory, and the best weights are kept as half."""
import io
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(29)
device = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS, ROUND_STEPS, BATCH = 8, 25, 96


def build():
    model = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    return model, optimizer, scaler


def save(model, optimizer, scaler):
    buffer = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), scaler.state_dict()], buffer)
    return buffer.getvalue()


def resume(blob):
    parts = build()
    for part, state in zip(parts, torch.load(io.BytesIO(blob), map_location=device, weights_only=True)):
        part.load_state_dict(state)
    return parts


def half_copy(model):
    return {name: value.detach().half().clone() for name, value in model.state_dict().items()}


def logs(n):
    wind, pitch, yaw = 12 * torch.rand(n), 10 * torch.rand(n), 0.4 * torch.randn(n)
    cold, rough = torch.randn(n), torch.rand(n)
    free = (wind * torch.cos(yaw) / 10).clamp(min=0) ** 3 * (1 - 0.004 * pitch**2) * (1 + 0.04 * cold)
    power = torch.tanh(free) * (1 - 0.2 * rough) + 0.02 * torch.randn(n)
    x = torch.stack([wind / 6 - 1, pitch / 5 - 1, 2 * yaw, cold, 2 * rough - 1], 1)
    return x.to(device), power.to(device)


held_x, held_y = logs(2000)
best, best_error, skipped = None, float("inf"), 0
blob = save(*build())
for number in range(ROUNDS):
    model, optimizer, scaler = resume(blob)
    for group in optimizer.param_groups:
        group["lr"] = 5e-3 * (1 - number / ROUNDS)
    for _ in range(ROUND_STEPS):
        x, power = logs(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x).squeeze(1).float(), power)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = F.l1_loss(model(held_x).squeeze(1).float(), held_y).item()
    if error < best_error:
        best, best_error = half_copy(model), error
    blob = save(model, optimizer, scaler)
    print(f"round {number}: held-out error {error:.4f}")

model, _, _ = build()
model.load_state_dict(best)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    x, power = logs(8000)
    error = F.l1_loss(model(x).squeeze(1).float(), power).item()
print(f"skipped steps {skipped}")
print(f"metric {error:.4f}")
