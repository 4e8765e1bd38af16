"""A small VAE on synthetic stroke images, with an optimizer that keeps its moments in 16 bits to save memory."""
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
SIDE, LATENT, STEPS, BATCH = 16, 6, 260, 128


class LeanAdam(torch.optim.Optimizer):
    """AdamW whose moments take half of the room."""

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["step"] = 0
                    s["m"] = torch.zeros_like(p, dtype=torch.float16)
                    s["v"] = torch.zeros_like(p, dtype=torch.float16)
                s["step"] += 1
                m = s["m"].float().lerp_(p.grad, 1 - b1)
                v = s["v"].float().mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                s["m"].copy_(m)
                s["v"].copy_(v)
                m_hat = s["m"].float() / (1 - b1 ** s["step"])
                v_hat = s["v"].float() / (1 - b2 ** s["step"])
                update = m_hat / (v_hat.sqrt() + group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update.clamp_(-5, 5), alpha=-group["lr"])


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIDE * SIDE, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
        self.to_mu = nn.Linear(96, LATENT)
        self.to_logvar = nn.Linear(96, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, SIDE * SIDE)
        )

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.to_mu(h), self.to_logvar(h).clamp(-8, 4)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu.float(), logvar.float()


def strokes(n):
    """Blurred line segments."""
    grid = torch.linspace(-1, 1, SIDE)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    angle, offset = torch.rand(n, 1, 1) * 3.14159, (torch.rand(n, 1, 1) - 0.5)
    across = xx * angle.cos() + yy * angle.sin() - offset
    return torch.exp(-(across**2) / 0.02).flatten(1)


def main():
    torch.manual_seed(25)
    train, test = strokes(4096).to(device), strokes(512).to(device)
    model = VAE().to(device)
    opt = LeanAdam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    for step in range(STEPS):
        x = train[torch.randint(0, len(train), (BATCH,), device=device)]
        with torch.autocast("cuda", dtype=torch.float16):
            recon, mu, logvar = model(x)
            kl = 0.5 * (mu**2 + logvar.exp() - 1 - logvar).sum(1).mean()
            loss = F.mse_loss(recon, x) + 1e-4 * kl
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 65 == 0:
            print(f"step {step} loss {loss.item():.4f} kl {kl.item():.2f}")
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        recon, mu, logvar = model(test)
        error = F.mse_loss(recon, test).item()
    print(f"RESULT {error:.5f}")


if __name__ == "__main__":
    main()
