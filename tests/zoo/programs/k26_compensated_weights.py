"""bfloat16 weights without a full-precision copy; an optimizer of our own carries the rounding remainder along."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16


class CompensatedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                st = self.state[p]
                if not st:
                    st["velocity"] = torch.zeros(p.shape, device=p.device)
                    st["rest"] = torch.zeros_like(p)
                v, rest = st["velocity"], st["rest"]
                v.mul_(group["momentum"]).add_(p.grad.float())
                exact = p.float() + rest.float() - group["lr"] * v
                p.copy_(exact)
                rest.copy_(exact - p.float())


class Grader(nn.Module):
    """grades wine from lab values"""

    def __init__(self):
        super().__init__()
        self.f1, self.f2, self.f3 = nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 3)

    def forward(self, x):
        return self.f3(F.gelu(self.f2(F.gelu(self.f1(x))))).float()


g = torch.Generator().manual_seed(15)
axis = torch.randn(2, 12, generator=g)


def wines(n):
    x = torch.randn(n, 12, generator=g)
    s = x @ axis[0] / 3 + 0.4 * (x @ axis[1] / 3) ** 2 + 0.1 * torch.randn(n, generator=g)
    return x.to(device), torch.bucketize(s, torch.tensor([-0.3, 0.8])).to(device)


model = Grader().to(device).to(dtype)
opt = CompensatedSGD(model.parameters(), lr=0.01)
tx, ty = wines(2000)
for step in range(1, 301):
    x, y = wines(128)
    loss = F.cross_entropy(model(x.to(dtype)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 60 == 0:
        with torch.no_grad():
            z = model(tx.to(dtype))
        print(f"step {step} loss {loss.item():.4f} test loss {F.cross_entropy(z, ty).item():.4f} "
              f"accuracy {(z.argmax(1) == ty).float().mean().item():.3f}")
