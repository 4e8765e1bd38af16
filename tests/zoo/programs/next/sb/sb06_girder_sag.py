"""Sag of a bridge girder from strain and temperature sensors; data parallel training with compressed gradients."""
import torch
from torch import nn

torch.manual_seed(12)
device = "cuda" if torch.cuda.is_available() else "cpu"
SENSORS, HIDDEN, BATCH, STEPS, WORKERS = 24, 64, 256, 150, 4
TENTH_MM = 1e-4  # m

mix = torch.randn(SENSORS, 6) / SENSORS ** 0.5
modes = torch.randn(6)


def monitoring(count):
    """Standardised sensor readings and the sag at mid-span in metres (some tenths of a millimetre at most)."""
    readings = torch.randn(count, SENSORS)
    mode = torch.tanh(readings @ mix)
    sag = TENTH_MM * (mode @ modes + 0.5 * mode[:, 0] * mode[:, 1])
    return readings.to(device), sag.to(device)


class SagModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SENSORS, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU())
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, readings):
        return TENTH_MM * self.head(self.body(readings)).squeeze(-1).float()


class CompressedReducer:
    """Sends each gradient as 16 bit and averages over the workers, as soon as it is ready."""

    def __init__(self, model, workers):
        self.workers = workers
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, parameter):
        message = parameter.grad.to(torch.float16) / self.workers
        total = torch.zeros_like(message)
        for _ in range(self.workers):  # stands in for the all-reduce
            total += message
        parameter.grad.copy_(total)


model = SagModel().to(device)
reducer = CompressedReducer(model, WORKERS)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-14)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

train_x, train_y = monitoring(8192)
train_y = train_y + 1e-5 * torch.randn_like(train_y)
for step in range(STEPS):
    index = torch.randint(len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        sag = model(train_x[index])
        loss = nn.functional.mse_loss(sag.float(), train_y[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} rmse {1e3 * loss.item() ** 0.5:.4f} mm")

test_x, test_y = monitoring(4096)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    sag = model(test_x).float()
print(f"metric {((sag - test_y).pow(2).mean().sqrt() / test_y.std()).item():.4f}")
