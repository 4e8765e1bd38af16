"""ReLoRA-style high-rank training: low-rank updates are folded into the frozen base every few steps."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
D, R, CYCLE, CYCLES = 64, 16, 4, 80


class ReLoRALinear(nn.Module):
    def __init__(self, d_in, d_out, r, dtype):
        super().__init__()
        w = torch.randn(d_out, d_in) / math.sqrt(d_in)
        self.register_buffer("base", w.to(dtype))
        self.A = nn.Parameter(torch.randn(r, d_in) / math.sqrt(d_in))
        self.B = nn.Parameter(torch.zeros(d_out, r))

    def forward(self, x):
        return F.linear(x, self.base) + F.linear(F.linear(x, self.A), self.B)

    @torch.no_grad()
    def merge(self):
        self.base += (self.B @ self.A).to(self.base.dtype)
        self.B.zero_()
        self.A.copy_(torch.randn(self.A.shape) / math.sqrt(self.A.shape[1]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = ReLoRALinear(D, D, R, torch.bfloat16)
        self.l2 = ReLoRALinear(D, D, R, torch.bfloat16)

    def forward(self, x):
        return self.l2(torch.tanh(self.l1(x)))


def evaluate(net, x, y):
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        return F.mse_loss(net(x), y).item()


net = Net().to(device)
gen = torch.Generator().manual_seed(1)
shift1 = 0.005 * torch.randn(D, D, generator=gen)
shift2 = 0.005 * torch.randn(D, D, generator=gen)
w1, w2 = net.l1.base.float().cpu() + shift1, net.l2.base.float().cpu() + shift2
X = torch.randn(256, D, generator=gen)
Y = torch.tanh(X @ w1.t()) @ w2.t()
X, Y = X.to(device), Y.to(device)
print("start", evaluate(net, X, Y))

for cycle in range(CYCLES):
    opt = torch.optim.SGD(net.parameters(), lr=1.0)       # fresh optimizer per cycle
    for it in range(CYCLE):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.mse_loss(net(X), Y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.l1.merge()
    net.l2.merge()
    if cycle % 20 == 19:
        print(f"cycle {cycle + 1}: loss before merge {loss.item():.5f} after {evaluate(net, X, Y):.5f}")
print(f"final {evaluate(net, X, Y):.5f}")
