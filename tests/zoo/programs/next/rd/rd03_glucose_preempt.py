"""Glucose forecasts (30 minutes ahead) on preemptible machines: the job is packed up and unpacked every few steps."""
import io
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
HISTORY, PATIENTS, LEASES, STEPS_PER_LEASE = 24, 96, 48, 6


def build():
    net = nn.Sequential(nn.Linear(HISTORY + 2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    return net.to(device)


def slim(value):
    """Optimizer moments take twice the room of the weights; store them as half."""
    if torch.is_tensor(value) and value.is_floating_point() and value.dim() > 0:
        return value.half().cpu()
    if isinstance(value, dict):
        return {k: slim(v) for k, v in value.items()}
    return value


def pack(model, optimizer, scaler, step):
    state = optimizer.state_dict()
    blob = io.BytesIO()
    torch.save({
        "model": model.state_dict(),
        "optimizer": {"state": slim(state["state"]), "param_groups": state["param_groups"]},
        "scaler": scaler.state_dict(),
        "step": step,
    }, blob)
    return blob.getvalue()


def unpack(blob):
    saved = torch.load(io.BytesIO(blob), map_location=device, weights_only=True)
    model = build()
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(saved["optimizer"])
    scaler = torch.amp.GradScaler("cuda")
    scaler.load_state_dict(saved["scaler"])
    return model, optimizer, scaler, saved["step"]


def days(n):
    """History of readings with meals and insulin; mmol/l, as deviation from the patient's usual level, over 30."""
    t = torch.arange(HISTORY + 6).float()
    meal_at, size = torch.randint(0, HISTORY, (n, 1)).float(), torch.rand(n, 1)
    dose_at, dose = torch.randint(0, HISTORY, (n, 1)).float(), torch.rand(n, 1)
    after_meal, after_dose = (t - meal_at).clamp(min=0), (t - dose_at).clamp(min=0)
    curve = size * after_meal / 6 * torch.exp(1 - after_meal / 6) - 0.7 * dose * after_dose / 10 * torch.exp(1 - after_dose / 10)
    curve = 0.1 * (curve + 0.2 * torch.sin(t / 9 + 6.28 * torch.rand(n, 1)))
    x = torch.cat([curve[:, :HISTORY] + 0.001 * torch.randn(n, HISTORY), size, dose], 1)
    return x.to(device), curve[:, -1:].to(device)


def lease(blob, steps):
    """Go on with the training until the machine is taken away."""
    model, optimizer, scaler, step = unpack(blob)
    for _ in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 6e-3 * min(1.0, (step + 1) / 20) * (1 - 0.5 * step / (LEASES * STEPS_PER_LEASE))
        x, y = days(PATIENTS)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
    return pack(model, optimizer, scaler, step), loss.item()


model = build()
blob = pack(model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cuda"), 0)
for number in range(LEASES):
    blob, last = lease(blob, STEPS_PER_LEASE)
    if number % 8 == 7:
        print(f"lease {number:2d}  loss {last:.5f}")

model = unpack(blob)[0].eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    x, y = days(8000)
    rmse = F.mse_loss(model(x).float(), y).sqrt().item()
print(f"metric {rmse:.5f}")
