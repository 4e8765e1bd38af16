# Latent neural ODE with a fixed-step adjoint: the state is integrated backwards from its end value.
import torch
import torch.nn as nn

torch.manual_seed(6)
DEV = "cuda" if torch.cuda.is_available() else "cpu"
DT, NSTEP = 0.05, 40


class Field(nn.Module):
    def __init__(self, d=6, h=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, d))
        self.damp = nn.Parameter(torch.linspace(0.1, 6.4, d))   # slow and fast modes

    def forward(self, z):
        return self.net(z) - self.damp.to(z.dtype) * z


class Adjoint(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type=DEV, cast_inputs=torch.float16)
    def forward(ctx, z0, field, *weights):
        ctx.field = field
        z = z0
        with torch.no_grad(), torch.autocast(DEV, dtype=torch.float16):
            for _ in range(NSTEP):
                k = field(z)
                z = z + DT * field(z + 0.5 * DT * k)
        ctx.save_for_backward(z)
        return z

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEV)
    def backward(ctx, gz):
        (z,) = ctx.saved_tensors
        field, lam = ctx.field, gz.float()
        params = list(field.parameters())
        acc = [torch.zeros_like(p) for p in params]
        with torch.autocast(DEV, dtype=torch.float16):
            for _ in range(NSTEP):
                with torch.no_grad():                       # rewind one midpoint step
                    k = field(z)
                    z = z - DT * field(z - 0.5 * DT * k)
                with torch.enable_grad():
                    zi = z.detach().requires_grad_()
                    k = field(zi)
                    znext = (zi + DT * field(zi + 0.5 * DT * k)).float()
                    g = torch.autograd.grad(znext, [zi, *params], lam)
                lam = g[0].float()
                for a, b in zip(acc, g[1:]):
                    a += b
        return (lam, None, *acc)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.field, self.dec = nn.Linear(5, 6), Field(), nn.Linear(6, 2)

    def forward(self, x):
        z = Adjoint.apply(self.enc(x), self.field, *self.field.parameters())
        return self.dec(z)


model = Model().to(DEV)
optim = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler(DEV, init_scale=256.0)
curve = []
for step in range(60):
    x = torch.randn(48, 5)
    y = torch.stack([torch.sin(2 * x[:, 0]) + x[:, 1], x[:, 2] * x[:, 3]], 1)
    optim.zero_grad(set_to_none=True)
    with torch.autocast(DEV, dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x.to(DEV)), y.to(DEV))
    scaler.scale(loss).backward()
    scaler.step(optim)
    scaler.update()
    curve.append(loss.item())
print(f"loss first {curve[0]:.4f} last ten {sum(curve[-10:]) / 10:.4f}")
