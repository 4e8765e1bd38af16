"""Potential energy surface (6-mode Henon-Heiles) fitted by a deep momentum ResNet in constant memory.

The layers x, v -> x + v', v' = g v + (1 - g) f(x) are invertible: the backward pass recovers the activations
from the outputs, layer by layer, and stores none.
"""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

MODES, WIDTH, LAYERS, MOMENTUM = 6, 32, 36, 0.8
BATCH, EPOCHS = 100, 18


def layer(x, weight, bias):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return torch.tanh(F.linear(x, weight, bias)).to(x.dtype)


class MomentumStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, v, weights, biases):
        with torch.no_grad():
            for weight, bias in zip(weights, biases):
                v = MOMENTUM * v + (1 - MOMENTUM) * layer(x, weight, bias)
                x = x + v
        ctx.save_for_backward(x.to(torch.bfloat16), v.to(torch.bfloat16), weights, biases)
        return x, v

    @staticmethod
    def backward(ctx, grad_x, grad_v):
        x, v, weights, biases = ctx.saved_tensors
        grad_weights, grad_biases = torch.zeros_like(weights), torch.zeros_like(biases)
        for index in reversed(range(len(weights))):
            x = x - v
            with torch.enable_grad():
                inputs = [t.detach().requires_grad_() for t in (x, weights[index], biases[index])]
                out = layer(*inputs)
            v = (v - (1 - MOMENTUM) * out.detach()) / MOMENTUM
            grad_v = grad_v + grad_x
            through = ((1 - MOMENTUM) * grad_v).to(out.dtype)
            from_x, grad_weights[index], grad_biases[index] = torch.autograd.grad(out, inputs, through)
            grad_x = grad_x + from_x
            grad_v = MOMENTUM * grad_v
        return grad_x, grad_v, grad_weights, grad_biases


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(MODES, WIDTH)
        self.weights = nn.Parameter(torch.randn(LAYERS, WIDTH, WIDTH) * WIDTH**-0.5)
        self.biases = nn.Parameter(torch.zeros(LAYERS, WIDTH))
        self.energy = nn.Linear(WIDTH, 1)

    def forward(self, q):
        x = self.lift(q)
        x, _ = MomentumStack.apply(x, torch.zeros_like(x), self.weights, self.biases)
        return self.energy(x).squeeze(-1)


def henon_heiles(n):
    q = torch.randn(n, MODES) * 0.9
    a, b = q[:, :-1], q[:, 1:]
    energy = 0.5 * q.pow(2).sum(1) + 0.35 * (a**2 * b - b**3 / 3).sum(1)
    return q.to(device), energy.to(device)


q, energy = henon_heiles(4000)
q_test, energy_test = henon_heiles(1000)
mean, std = energy.mean(), energy.std()

model = Surface().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
for epoch in range(EPOCHS):
    total = 0.0
    for batch in torch.randperm(len(q)).to(device).split(BATCH):
        loss = F.mse_loss(model(q[batch]), (energy[batch] - mean) / std)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * BATCH / len(q)
    schedule.step()
    if epoch % 3 == 2:
        print(f"epoch {epoch} mse {total:.4f}")

with torch.no_grad():
    error = model(q_test) - (energy_test - mean) / std
print("METRIC", error.pow(2).mean().sqrt().item())
