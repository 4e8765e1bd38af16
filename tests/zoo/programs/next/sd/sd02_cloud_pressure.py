"""Cloud-top pressure from infrared radiances. Saved activations are packed to keep the memory down."""
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS, STEPS, BATCH = 16, 150, 256
SURFACE = 101325.0  # Pa


def pack(tensor):
    """Store float32 activations compressed until the backward pass needs them."""
    if tensor.dtype == torch.float32 and tensor.numel() >= BATCH:
        return tensor.dtype, tensor.half()
    return None, tensor


def unpack(packed):
    dtype, tensor = packed
    return tensor if dtype is None else tensor.to(dtype)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(CHANNELS, 96), nn.LayerNorm(96), nn.GELU(),
            nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 1),
        )

    def forward(self, radiance):
        """Pressure of the cloud top in Pa."""
        level = self.body(radiance).squeeze(-1).float()
        return SURFACE * torch.sigmoid(level).clamp(0.05, 0.999)


def scenes(count, response):
    pressure = SURFACE * (0.15 + 0.83 * torch.rand(count))
    moisture = torch.rand(count, 1)
    depth = (pressure / SURFACE).unsqueeze(1)
    radiance = torch.tanh(response[0] * (depth - response[1])) + 0.2 * moisture * response[2]
    return (radiance + 0.01 * torch.randn(count, CHANNELS)).to(device), pressure.to(device)


response = (3 * torch.rand(CHANNELS) + 1, torch.rand(CHANNELS), torch.randn(CHANNELS))
train_x, train_p = scenes(8192, response)
test_x, test_p = scenes(2048, response)

model = Retrieval().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    rows = torch.randint(0, len(train_x), (BATCH,)).to(device)
    optimizer.zero_grad(set_to_none=True)
    with saved_tensors_hooks(pack, unpack):
        with torch.autocast("cuda", dtype=torch.float16):
            pressure = model(train_x[rows])
        # relative error counts: high clouds matter as much as low ones
        misfit = torch.log(pressure) - torch.log(train_p[rows])
        loss = misfit.square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(test_x) - test_p).abs().mean() / 100
print("metric", round(error.item(), 3))  # hPa
