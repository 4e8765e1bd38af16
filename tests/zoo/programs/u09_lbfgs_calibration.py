"""Calibrate a small response-surface network with full-batch L-BFGS."""
import torch
import torch.nn as nn

torch.manual_seed(6)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(3, 24)
        self.l2 = nn.Linear(24, 24)
        self.l3 = nn.Linear(24, 1)

    def forward(self, q):
        h = torch.tanh(self.l1(q))
        h = h + torch.tanh(self.l2(h))
        return self.l3(h).float().squeeze(-1)


q = (torch.rand(400, 3) * 2 - 1).to(device)
resp = torch.sin(2 * q[:, 0]) * q[:, 1] + 0.5 * q[:, 2] ** 2

net = Surface().to(device)
opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=10, history_size=8)
calls = 0


def closure():
    global calls
    calls += 1
    opt.zero_grad()
    loss = (net(q) - resp).pow(2).mean()
    loss.backward()
    return loss


for sweep in range(8):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        start = opt.step(closure)
    print(f"sweep {sweep} start loss {start.item():.5f} calls {calls}")
with torch.no_grad():
    print("final", (net(q) - resp).pow(2).mean().item())
