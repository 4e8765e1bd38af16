"""Tabular regression; own memory-saving Adam whose moments live in bf16 while the weights stay FP32."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class LeanAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.998), eps=1e-8, state_dtype=torch.bfloat16):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.state_dtype = state_dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["n"] = 0
                    st["m"] = torch.zeros_like(p, dtype=self.state_dtype)
                    st["v"] = torch.zeros_like(p, dtype=self.state_dtype)
                st["n"] += 1
                g = p.grad.to(self.state_dtype)
                st["m"].mul_(b1).add_(g, alpha=1 - b1)
                st["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                mh = st["m"].float() / (1 - b1 ** st["n"])
                vh = st["v"].float() / (1 - b2 ** st["n"])
                p.add_(mh / (vh.sqrt() + group["eps"]), alpha=-group["lr"])


class Regressor(nn.Module):
    def __init__(self, cols=12, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(cols, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.trunk(x)).squeeze(-1)


def rows(n, coef):
    x = torch.randn(n, 12)
    return x, 15.0 + 3 * x @ coef + torch.sin(3 * x[:, 0]) * x[:, 1]


def main(steps=700):
    torch.manual_seed(30)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    coef = torch.randn(12)
    model = Regressor().to(device)
    opt = LeanAdam(model.parameters(), lr=2e-3)
    val = [t.to(device) for t in rows(512, coef)]
    for it in range(steps):
        x, y = rows(64, coef)
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            pred = model(x.to(device))
        loss = F.mse_loss(pred.float(), y.to(device))
        loss.backward()
        opt.step()
        if (it + 1) % 100 == 0:
            with torch.no_grad():
                v = F.mse_loss(model(val[0]), val[1]).item()
            vm = sum(opt.state[p]["v"].float().sum().item() for p in model.parameters())
            print(f"{it + 1}: val mse {v:.4f}  sum of second moments {vm:.4f}")


if __name__ == "__main__":
    main()
