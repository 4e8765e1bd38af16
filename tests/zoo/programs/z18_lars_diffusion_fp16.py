"""Large-batch denoiser training with LARS; weights, gradients and momentum in fp16."""
import torch
from torch import nn
from torch.optim import Optimizer

device = "cuda" if torch.cuda.is_available() else "cpu"


class LARS(Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0, trust_coefficient=0.002):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                dp = p.grad
                if dp is None:
                    continue
                if p.ndim > 1:
                    dp = dp.add(p, alpha=g["weight_decay"])
                    param_norm = (p * p).sum().sqrt()
                    update_norm = (dp * dp).sum().sqrt()
                    one = torch.ones_like(param_norm)
                    q = torch.where(param_norm > 0.0,
                                    torch.where(update_norm > 0, g["trust_coefficient"] * param_norm / update_norm, one), one)
                    dp = dp.mul(q)
                st = self.state[p]
                if "mu" not in st:
                    st["mu"] = torch.zeros_like(p)
                mu = st["mu"]
                mu.mul_(g["momentum"]).add_(dp)
                p.add_(mu, alpha=-g["lr"])


class Denoiser(nn.Module):
    def __init__(self, d=16, h=128):
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.net = nn.Sequential(nn.Linear(d + 16, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, d))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.emb(t)], -1))


def main():
    torch.manual_seed(0)
    model = Denoiser().to(device).to(torch.float16)
    opt = LARS(model.parameters(), lr=1.0)
    basis = torch.randn(4, 16)
    for it in range(150):
        x0 = (torch.randn(512, 4) @ basis / 2).to(device)
        t = torch.randint(0, 20, (512,), device=device)
        a = torch.cos((t.float() + 1) / 21 * 1.5)[:, None]
        noise = torch.randn_like(x0)
        xt = a * x0 + (1 - a * a).sqrt() * noise
        pred = model(xt.to(torch.float16), t).float()
        loss = (pred - noise).pow(2).mean() * 0.01        # same weight as in the multi-task run
        for p in model.parameters():
            p.grad = None
        loss.backward()
        opt.step()
        if it % 30 == 29:
            print(f"{it + 1:4d}: eps-mse {loss.item() * 100:.4f}")


main()
