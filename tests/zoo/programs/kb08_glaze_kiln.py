"""Colour of a ceramic glaze after firing (Lab, scaled) from the oxide recipe and the kiln programme."""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class GrowingScale(nn.Module):
    """Dynamic loss scale that lives with the model, so that it is saved and moved together with it."""

    def __init__(self, start=2.0**12, every=20):
        super().__init__()
        self.every = every
        self.good = 0
        self.register_buffer("scale", torch.tensor(start))

    def backward(self, loss):
        (loss * self.scale.float()).backward()

    @torch.no_grad()
    def finish(self, params, optimizer):
        grads = [p.grad for p in params if p.grad is not None]
        if not all(torch.isfinite(g).all() for g in grads):
            self.scale.mul_(0.5)
            self.good = 0
            return False
        torch._foreach_div_(grads, self.scale.item())
        optimizer.step()
        self.good += 1
        if self.good % self.every == 0:
            self.scale.mul_(2.0)
        return True


class GlazeModel(nn.Module):
    def __init__(self, oxides=9, program=5, width=64):
        super().__init__()
        self.recipe = nn.Sequential(nn.Linear(oxides, width), nn.Tanh())
        self.kiln = nn.Sequential(nn.Linear(program, width), nn.Tanh())
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, 3))
        self.loss_scale = GrowingScale()

    def forward(self, oxides, program):
        return self.mix(torch.cat([self.recipe(oxides), self.kiln(program)], -1))


def firings(n, a, b):
    oxides = torch.distributions.Dirichlet(torch.ones(9)).sample((n,)) * 3
    program = torch.rand(n, 5) * 2 - 1
    lab = torch.tanh((oxides @ a) * (1 + program @ b)) * 0.2
    return oxides.to(device), program.to(device), (lab + 0.004 * torch.randn(n, 3)).to(device)


def main():
    torch.manual_seed(13)
    a, b = torch.randn(9, 3), torch.randn(5, 3)
    oxides, program, lab = firings(2500, a, b)
    test = firings(600, a, b)
    model = GlazeModel().to(device).half()
    master = [p.detach().float().requires_grad_() for p in model.parameters()]
    weights = list(model.parameters())
    opt = torch.optim.Adam(master, lr=2e-3)
    for step in range(280):
        i = torch.randint(0, len(lab), (96,), device=device)
        for p in weights:
            p.grad = None
        loss = nn.functional.mse_loss(model(oxides[i].half(), program[i].half()).float(), lab[i])
        model.loss_scale.backward(loss)
        for m, p in zip(master, weights):
            m.grad = p.grad.float()
        if model.loss_scale.finish(master, opt):
            with torch.no_grad():
                for m, p in zip(master, weights):
                    p.copy_(m)
        if step % 40 == 0:
            print(f"{step:4d}  {loss.item():.5f}")
    with torch.no_grad():
        out = model(test[0].half(), test[1].half()).float()
    print(f"metric {nn.functional.mse_loss(out, test[2]).item() * 1e3:.4f}")


main()
