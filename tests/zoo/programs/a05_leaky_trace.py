import torch
from torch import nn
import torch.nn.functional as F


class Trace(nn.Module):
    """Online learner: carries a leaky trace of its inputs from one step to the next."""

    def __init__(self, d, h):
        super().__init__()
        self.inp = nn.Linear(d, h)
        self.out = nn.Linear(h, d)
        self.state = None

    def forward(self, x):
        u = self.inp(x)
        self.state = u if self.state is None else 0.998 * self.state + u
        s = self.state
        self.state = s.detach()
        return self.out(torch.sign(s) * torch.log1p(s.abs()))


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = Trace(8, 32).to(device)
optim = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
gain = 600 * torch.rand(16, 8)
for t in range(150):
    x = (gain + 30 * torch.randn(16, 8)).to(device)
    with torch.autocast("cuda", torch.float16):
        loss = F.smooth_l1_loss(net(x), x / 600)
    optim.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optim)
    scaler.update()
    if t % 30 == 29:
        print(t, float(loss), scaler.get_scale())
