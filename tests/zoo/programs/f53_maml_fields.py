"""MAML for displacement fields: adapt a coordinate network to a new specimen from a few strain-gauge frames."""
import torch
from torch import nn
import torch.nn.functional as F
from torch.func import functional_call

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
SIDE, HID, INNER_STEPS, INNER_LR = 24, 48, 3, 4.0e4
axis = torch.linspace(-1, 1, SIDE, device=device)
grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)


def specimen():
    """Displacement (metres) of one loaded plate: amplitude and modes differ from plate to plate."""
    amp = 6e-4 * (0.5 + torch.rand(1, device=device))
    k, phase = 1.5 + torch.rand(2, device=device), 3.14 * torch.rand(2, device=device)
    u = amp * torch.sin(grid[:, 0] * k[0] + phase[0])
    v = amp * torch.cos(grid[:, 1] * k[1] + phase[1])
    return torch.stack([u, v], -1)


class FieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(2, HID), nn.Linear(HID, HID), nn.Linear(HID, 2)

    def forward(self, xy):
        return 2e-3 * self.l3(torch.tanh(self.l2(torch.tanh(self.l1(2 * xy)))))


def adapt(net, params, xy, target):
    for _ in range(INNER_STEPS):
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = F.mse_loss(functional_call(net, params, (xy,)), target)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {n: p - INNER_LR * g for (n, p), g in zip(params.items(), grads)}
    return params


net = FieldNet().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 18)
late = 0.0
for it in range(60):
    opt.zero_grad()
    before = after = 0.0
    for _ in range(4):
        field = specimen()
        pick = torch.randperm(len(grid), device=device)
        sup, qry = pick[:256], pick[256:]
        params = dict(net.named_parameters())
        fast = adapt(net, params, grid[sup], field[sup])
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = F.mse_loss(functional_call(net, fast, (grid[qry],)), field[qry])
        scaler.scale(loss / 4).backward()
        with torch.no_grad():
            before += F.mse_loss(net(grid[qry]), field[qry]).item() / 4
        after += loss.item() / 4
    late += after / 20 if it >= 40 else 0.0
    scaler.step(opt)
    scaler.update()
    if it % 10 == 9:
        print(f"iter {it + 1:3d}  query mse before adaptation {before:.3e}  after {after:.3e}")
print(f"mean query mse after adaptation, last 20 iterations {late:.3e}")
