"""Kronecker-factored natural gradient for a small operator network (coefficients in, solution on a grid out)."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class KroneckerFactors:
    """Collects input and output-gradient factors of every linear layer and preconditions its gradients."""

    def __init__(self, model, scaler, decay=0.9, damping=0.3):
        self.scaler, self.decay, self.damping = scaler, decay, damping
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.inputs, self.outputs = {}, {}
        for layer in self.layers:
            layer.register_forward_pre_hook(self.on_forward)
            layer.register_full_backward_hook(self.on_backward)

    def blend(self, store, key, value):
        value = value.float()
        store[key] = value if key not in store else self.decay * store[key] + (1 - self.decay) * value

    def on_forward(self, layer, args):
        if not torch.is_grad_enabled():
            return
        x = args[0].detach().float()
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        self.blend(self.inputs, layer, x.t() @ x / len(x))

    def on_backward(self, layer, grad_input, grad_output):
        g = grad_output[0].detach()
        g = g / self.scaler.get_scale()
        self.blend(self.outputs, layer, g.t() @ g * len(g))

    def damped(self, factor):
        level = self.damping * factor.diagonal().mean() + 1e-10
        return factor + level * torch.eye(len(factor), device=factor.device)

    @torch.no_grad()
    def precondition(self, radius=0.005):
        total, found = 0.0, []
        for layer in self.layers:
            grad = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
            left, right = self.damped(self.outputs[layer]), self.damped(self.inputs[layer])
            step = torch.linalg.solve(right, torch.linalg.solve(left, grad).t()).t()
            total += (step * grad).sum().item()
            found.append((layer, step))
        shrink = min(1.0, (radius / (abs(total) + 1e-12)) ** 0.5)
        for layer, step in found:
            layer.weight.grad.copy_(step[:, :-1] * shrink)
            layer.bias.grad.copy_(step[:, -1] * shrink)


class Surrogate(nn.Module):
    def __init__(self, modes=8, width=48, grid=64):
        super().__init__()
        self.lift = nn.Linear(modes, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, grid)

    def forward(self, a):
        h = torch.tanh(self.lift(a))
        h = h + torch.tanh(self.mid(h))
        return self.out(h)


def make_data(n, modes=8, grid=64):
    x = torch.linspace(0, 1, grid)
    basis = torch.stack([torch.sin((k + 1) * torch.pi * x) for k in range(modes)])
    a = torch.randn(n, modes)
    u = torch.tanh(a) @ basis * 0.4 + 0.1 * (a[:, :1] * a[:, 1:2]) * basis[2]
    return a, u + 0.02 * torch.randn(n, grid)


def main(steps=60, batch=512):
    torch.manual_seed(0)
    a, u = (t.to(device) for t in make_data(4096))
    a_test, u_test = (t.to(device) for t in make_data(1024))
    model = Surrogate().to(device)
    scaler = torch.amp.GradScaler("cuda")
    factors = KroneckerFactors(model, scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    for step in range(steps):
        pick = torch.randint(0, len(a), (batch,))
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(a[pick]), u[pick])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        factors.precondition()
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 19:
            print(f"step {step + 1} loss {loss.item():.5f}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = (model(a_test).float() - u_test).norm() / u_test.norm()
    print(f"relative test error {error.item():.4f}")
    norms = [factors.outputs[layer].norm() for layer in factors.layers if layer in factors.outputs]
    print("output factors", *(f"{n.item():.3e}" for n in norms))
    return model, {"error": error, **{f"norm{i}": n for i, n in enumerate(norms)}}


if __name__ == "__main__":
    main()
