"""Length-of-stay model trained with per-patient clipping and noise (DP-SGD), torch.func version."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

device = "cuda" if torch.cuda.is_available() else "cpu"
CLIP, SIGMA, BATCH = 1.0, 0.5, 96


def cohort(n, seed):
    g = torch.Generator().manual_seed(seed)
    age = torch.rand(n, 1, generator=g)
    labs = torch.randn(n, 11, generator=g)
    risk = 1.2 * labs[:, :1] - labs[:, 1:2] * age + 0.5 * labs[:, 2:3].abs() + 2.0 * age
    days = torch.bucketize(risk.squeeze(1) + 0.3 * torch.randn(n, generator=g), torch.tensor([0.3, 1.3, 2.4]))
    return torch.cat([age, labs], 1).to(device), days.to(device)


class StayNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4))

    def forward(self, x):
        return self.layers(x)


class PrivateTrainer:
    def __init__(self, model, lr):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device, init_scale=4096.0)
        self.noise = torch.Generator(device=device).manual_seed(3)

    def one_loss(self, params, x, y, scale):
        with torch.autocast(device, dtype=torch.float16):
            logits = functional_call(self.model, params, (x[None],))
        return nn.functional.cross_entropy(logits.float(), y[None]) * scale

    def step(self, x, y):
        params = {k: p.detach() for k, p in self.model.named_parameters()}
        scale = self.scaler.scale(torch.ones((), device=device))
        per = vmap(grad(self.one_loss), in_dims=(None, 0, 0, None))(params, x, y, scale)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in per.values()]).norm(dim=0)
        weight = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        for k, p in self.model.named_parameters():
            summed = torch.einsum("b,b...->...", weight, per[k])
            summed += SIGMA * CLIP * torch.randn(p.shape, generator=self.noise, device=device)
            p.grad = summed / len(x)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()
        return norms


def main():
    torch.manual_seed(51)
    model = StayNet().to(device)
    x, y = cohort(3000, 1)
    xt, yt = cohort(3000, 2)
    trainer = PrivateTrainer(model, lr=0.3)
    pick = torch.Generator().manual_seed(4)
    for step in range(200):
        idx = torch.randint(0, len(x), (BATCH,), generator=pick)
        norms = trainer.step(x[idx], y[idx])
        if step % 40 == 0:
            with torch.no_grad():
                print(f"step {step} train loss {nn.functional.cross_entropy(model(x), y).item():.4f} median norm {norms.median().item():.2f}")
    with torch.no_grad():
        out = model(xt)
        nll = nn.functional.cross_entropy(out, yt).item()
        acc = (out.argmax(1) == yt).float().mean().item()
    print(f"test loss {nll:.4f} accuracy {acc:.3f}")
    return nll, acc


if __name__ == "__main__":
    main()
