"""Colour of a glass melt from its recipe, with an Adam that holds its momentum in 16 bit."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(10)
device = "cuda" if torch.cuda.is_available() else "cpu"


class LeanAdam(torch.optim.Optimizer):
    """Adam with a 16-bit first moment."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, momentum_dtype=torch.bfloat16):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.momentum_dtype = momentum_dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p, dtype=self.momentum_dtype)
                    state["v"] = torch.zeros_like(p)
                state["step"] += 1
                m = state["m"].float().lerp_(p.grad, 1 - beta1)
                v = state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                state["m"].copy_(m)
                v_hat = v / (1 - beta2 ** state["step"])
                p.addcdiv_(m / (1 - beta1 ** state["step"]), v_hat.sqrt_().add_(group["eps"]), value=-group["lr"])


absorb = torch.rand(9, 6)
observer = torch.rand(6, 3)


def melt(n):
    recipe = torch.rand(n, 9)
    recipe = recipe / recipe.sum(1, keepdim=True)
    through = torch.exp(-6 * recipe @ absorb)
    colour = 3 * through @ observer + 0.01 * torch.randn(n, 3)
    return (9 * recipe).to(device), colour.to(device)


class ColourNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(9, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3)
        )

    def forward(self, x):
        return self.layers(x)


x_train, y_train = melt(6000)
x_test, y_test = melt(3000)
model = ColourNet().to(device)
steps = 700
optimizer = LeanAdam(model.parameters(), lr=2e-3)

for step in range(steps):
    optimizer.param_groups[0]["lr"] = 2e-3 * (1 - step / steps)
    pick = torch.randint(len(x_train), (128,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        colour = model(x_train[pick])
    loss = F.mse_loss(colour.float(), y_train[pick])
    model.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.5f}")

with torch.no_grad():
    error = (model(x_test) - y_test).pow(2).mean().sqrt()
print(f"metric {error.item():.4f}")
