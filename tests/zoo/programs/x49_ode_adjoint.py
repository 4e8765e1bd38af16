# Neural ODE fitted with the adjoint method (fixed-step Euler), adjoint of the parameters integrated alongside.
import torch
import torch.nn as nn

torch.manual_seed(151)
device = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, DT = 1000, 0.002


class Dynamics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))

    def forward(self, z):
        with torch.autocast(device, dtype=torch.bfloat16):
            return self.net(z)


class OdeSolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, z, *params):
        ctx.f = f
        for _ in range(STEPS):
            z = z + DT * f(z).float()
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx, a):
        (z,) = ctx.saved_tensors
        params = list(ctx.f.parameters())
        acc = None
        for _ in range(STEPS):
            with torch.enable_grad():
                zi = z.detach().requires_grad_()
                dz = ctx.f(zi)
            g = torch.autograd.grad(dz, [zi, *params], a.to(dz.dtype))
            if acc is None:
                acc = [torch.zeros_like(p, dtype=dz.dtype) for p in params]
            acc = [s + DT * gp.to(s.dtype) for s, gp in zip(acc, g[1:])]
            z = z - DT * dz.detach().float()
            a = a + DT * g[0].float()
        return (None, a, *[s.float() for s in acc])


f = Dynamics().to(device)
opt = torch.optim.Adam(f.parameters(), lr=1e-2)
rot = torch.matrix_exp(torch.tensor([[-0.1, 1.0], [-1.0, -0.1]]) * 2.0)
for it in range(6):
    z0 = torch.randn(32, 2)
    z1 = (z0 @ rot.t()).to(device)
    loss = (OdeSolve.apply(f, z0.to(device), *f.parameters()) - z1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, f"{loss.item():.4f}")
