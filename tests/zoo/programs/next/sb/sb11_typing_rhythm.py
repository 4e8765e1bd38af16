"""Who types? Recurrent model of key intervals, with the gradient bounded on its way back through time."""
import torch
from torch import nn

torch.manual_seed(35)
device = "cuda" if torch.cuda.is_available() else "cpu"
USERS, LENGTH, HIDDEN, BATCH, STEPS, BOUND = 4, 12, 32, 128, 100, 0.3

tempo = torch.tensor([-0.5, 0.0, 0.0, 0.5])
memory = torch.tensor([0.8, 0.0, -0.8, 0.4])


def sessions(count):
    """Standardised log intervals and key distances; users differ in tempo and in rhythm."""
    user = torch.randint(USERS, (count,))
    travel = torch.rand(count, LENGTH)
    interval = torch.zeros(count, LENGTH)
    last = torch.randn(count)
    for t in range(LENGTH):
        last = memory[user] * last + 0.8 * torch.randn(count)
        interval[:, t] = last + tempo[user] + 0.3 * travel[:, t]
    return torch.stack([interval, travel], dim=-1).to(device), user.to(device)


class Rhythm(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, HIDDEN)
        self.head = nn.Linear(HIDDEN, USERS)

    def forward(self, keys, hook=None):
        state = torch.zeros(len(keys), HIDDEN, device=keys.device)
        for t in range(keys.shape[1]):
            state = self.cell(keys[:, t], state)
            if hook is not None and state.requires_grad:
                state.register_hook(hook)
        return self.head(state)


model = Rhythm().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)


def bound_state_grad(grad):
    norm = torch.linalg.vector_norm(grad, dtype=torch.float32)
    limit = BOUND * scaler.get_scale()
    return grad * (limit / (norm + 1e-6)).clamp(max=1.0).to(grad.dtype)


for step in range(STEPS):
    keys, user = sessions(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(keys, hook=bound_state_grad), user)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 25 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale()}")

keys, user = sessions(8192)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    accuracy = (model(keys).argmax(1) == user).float().mean()
print(f"scale {scaler.get_scale()}")
print(f"metric {accuracy.item():.4f}")
