"""Surrogate for strain gauges on a bridge deck: axle loads and positions in, strains (SI) out."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Surrogate(nn.Module):
    def __init__(self, inputs=6, gauges=8, width=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, gauges)
        )

    def forward(self, x):
        return 1e-4 * self.body(x).float()  # strains are some 100 microstrain


class MasterOptimizer:
    """FP32 copies of half weights, stepped with a constant loss scale."""

    def __init__(self, model, scale=2.0**20, **options):
        self.params = list(model.parameters())
        self.master = [p.detach().clone().float().requires_grad_() for p in self.params]
        self.inner = torch.optim.Adam(self.master, **options)
        self.scale = scale

    def backward(self, loss):
        for p in self.params:
            p.grad = None
        (loss * self.scale).backward()

    def step(self):
        grads = [p.grad for p in self.params]
        torch._foreach_mul_(grads, 1.0 / self.scale)
        if not all(torch.isfinite(g).all() for g in grads):
            return False
        for m, g in zip(self.master, grads):
            m.grad = g.to(m.dtype)
        self.inner.step()
        with torch.no_grad():
            for p, m in zip(self.params, self.master):
                p.copy_(m)
        return True


def deck(n, generator):
    """Influence lines of a simply supported span for two axles."""
    x = torch.rand(n, 6, generator=generator)
    load, place = x[:, [0, 1]], x[:, [2, 3]]
    gauges = torch.linspace(0.1, 0.9, 8)
    shape = torch.minimum(place[..., None] * (1 - gauges), gauges * (1 - place[..., None]))
    strain = 1e-4 * (8 * load[..., None] * shape).sum(1) * (1 + 0.3 * (x[:, 4:5] - 0.5))
    return (x - 0.5) * 3.4, strain


g = torch.Generator().manual_seed(1)
x_train, y_train = (t.to(device) for t in deck(2048, g))
x_test, y_test = (t.to(device) for t in deck(512, g))

model = Surrogate().to(device).half()
optimizer = MasterOptimizer(model, lr=4e-3, eps=1e-14)
loss_fn = nn.MSELoss()
for step in range(250):
    rows = torch.randint(0, len(x_train), (128,), device=device)
    loss = loss_fn(model(x_train[rows].half()), y_train[rows])
    optimizer.backward(loss)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: rms {loss.item() ** 0.5 * 1e6:.2f} microstrain")

model.eval()
with torch.no_grad():
    error = (model(x_test.half()) - y_test).pow(2).mean().sqrt()
print("metric", round((error / y_test.std()).item(), 4))
