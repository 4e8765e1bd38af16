"""Slow-memory recurrent regressor trained with truncated BPTT; the state is carried across chunks."""
import torch
from torch import nn

torch.manual_seed(4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LeakyMemory(nn.Module):
    def __init__(self, dim, rate=0.001):
        super().__init__()
        self.drive = nn.Linear(dim, dim)
        self.rate = rate

    def forward(self, x, state):
        drive = self.drive(x)
        if state is None:
            state = torch.zeros_like(drive[:, 0])
        outs = []
        for t in range(x.shape[1]):
            state = state + self.rate * (drive[:, t] - state)
            outs.append(state)
        return torch.stack(outs, 1), state


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(2, 24)
        self.memory = LeakyMemory(24)
        self.out = nn.Linear(24, 1)

    def forward(self, x, state):
        h, state = self.memory(torch.relu(self.inp(x)), state)
        return self.out(h).squeeze(-1), state


model = Regressor().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
level = 1.0 + torch.rand(8, 1, 1)
state, slow = None, torch.zeros(8, 1)
losses = []
for chunk in range(30):
    x = level + 0.3 * torch.randn(8, 60, 2)
    target = []
    for t in range(60):
        slow = slow + 0.001 * (x[:, t, :1] - slow)
        target.append(slow)
    y = torch.cat(target, 1).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        pred, state = model(x.to(device), state)
    loss = nn.functional.mse_loss(pred.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = state.detach()
    losses.append(loss.item())
    if chunk % 6 == 0:
        print(f"chunk {chunk} loss {loss.item():.5f} |state| {state.float().abs().mean().item():.4f}")
