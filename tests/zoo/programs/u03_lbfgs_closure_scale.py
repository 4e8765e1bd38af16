import torch
from torch import nn

# Burgers-type surrogate fitted with L-BFGS; half precision needs the loss multiplied up before backward
LOSS_SCALE = 65536.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(14)

x = torch.linspace(-1, 1, 1024, device=device).unsqueeze(1)
u = 2e-5 * (torch.sin(3.14159 * x) - 0.5 * torch.sin(9.42 * x))            # displacement in metres


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        self.amplitude = 1e-4

    def forward(self, x):
        return self.body(x).float() * self.amplitude


net = Surrogate().to(device)
opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=10, history_size=10,
                        line_search_fn="strong_wolfe")
calls = []


def closure():
    opt.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        out = net(x)
    loss = (out - u).pow(2).mean() / 2e-5 ** 2
    (loss * LOSS_SCALE).backward()
    with torch.no_grad():
        for p in net.parameters():
            p.grad.div_(LOSS_SCALE)
    calls.append(loss.item())
    return loss * 1.0


for outer in range(4):
    opt.step(closure)
rel = (calls[-1] / calls[0]) ** 0.5
print("calls", len(calls), "relative misfit", rel)
