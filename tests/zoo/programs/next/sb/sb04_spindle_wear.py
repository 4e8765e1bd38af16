"""Tool wear of a milling spindle from its load history; recurrent model with gradient clipping through time."""
import torch
from torch import nn

torch.manual_seed(23)
device = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS, LENGTH, HIDDEN, BATCH, STEPS = 4, 20, 48, 128, 160
CLIP = 0.5


def cuts(count):
    """Load channels of a series of cuts and the wear that builds up nonlinearly over them."""
    load = torch.randn(count, LENGTH, CHANNELS)
    wear = torch.zeros(count)
    for t in range(LENGTH):
        rate = load[:, t, 0] * torch.sigmoid(2 * load[:, t, 1]) + 0.5 * load[:, t, 2]
        wear = 0.9 * wear + 0.5 * rate
    wear = wear + 0.1 * torch.randn(count)
    return load.to(device), wear.to(device)


class WearModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(CHANNELS, HIDDEN)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, load, hook=None):
        state = torch.zeros(len(load), HIDDEN, device=load.device)
        for t in range(load.shape[1]):
            state = self.cell(load[:, t], state)
            if hook is not None and state.requires_grad:
                state.register_hook(hook)
        return self.head(state).squeeze(-1)


model = WearModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda")


def clip_state_grad(grad):
    """Bounds the gradient that travels to the step before, in units of the scaled loss."""
    norm = grad.pow(2).sum().sqrt()
    limit = CLIP * scaler.get_scale()
    return grad * (limit / (norm + 1e-6)).clamp(max=1.0)


train_load, train_wear = cuts(4096)
for step in range(STEPS):
    index = torch.randint(len(train_load), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        wear = model(train_load[index], hook=clip_state_grad)
        loss = nn.functional.mse_loss(wear, train_wear[index])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")

test_load, test_wear = cuts(2048)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    wear = model(test_load).float()
rmse = (wear - test_wear).pow(2).mean().sqrt() / test_wear.std()
print(f"metric {rmse.item():.4f}")
