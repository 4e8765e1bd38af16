"""Two-tower image/shape retrieval trained entirely in half weights; learnable temperature."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def tower(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, o))


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.shape = tower(16, 24), tower(12, 24)
        self.logit_scale = nn.Parameter(torch.tensor([math.log(1 / 0.07)]))

    def forward(self, a, b):
        a = F.normalize(self.image(a).float(), dim=-1)
        b = F.normalize(self.shape(b).float(), dim=-1)
        return self.logit_scale.float().exp() * a @ b.t()


class Pairs:
    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.A, self.B = torch.randn(4, 16, generator=self.g), torch.randn(4, 12, generator=self.g)

    def __call__(self, n=32):
        z = torch.randn(n, 4, generator=self.g)
        return (z @ self.A + 0.6 * torch.randn(n, 16, generator=self.g),
                z @ self.B + 0.6 * torch.randn(n, 12, generator=self.g))


def main(steps=300):
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TwoTower().to(device).half()
    opt = torch.optim.SGD([
        {"params": list(model.image.parameters()) + list(model.shape.parameters()), "lr": 0.5},
        {"params": [model.logit_scale], "lr": 1e-3}])
    pairs, lab = Pairs(), torch.arange(32, device=device)
    for it in range(steps):
        a, b = pairs()
        logits = model(a.to(device).half(), b.to(device).half())
        loss = (F.cross_entropy(logits, lab) + F.cross_entropy(logits.t(), lab)) / 2
        opt.zero_grad()
        (loss * 64).backward()
        for p in model.parameters():
            p.grad.div_(64)
        opt.step()
        if (it + 1) % 100 == 0:
            print(f"{it + 1}: loss {loss.item():.4f} temperature {1 / model.logit_scale.float().exp().item():.5f}")


if __name__ == "__main__":
    main()
