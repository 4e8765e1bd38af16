"""Diffusion over 2-D tool-tip positions (in metres), loss in x0 space, with the loss-aware timestep sampler of improved-diffusion."""
import math
import torch
import torch.nn as nn

T, HIST, BATCH, ITERS = 50, 10, 128, 400
UNIT = 0.03        # the workspace is a few centimetres wide
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(21)


class LossSecondMomentResampler:
    def __init__(self, num_timesteps, history_per_term=HIST, uniform_prob=0.001, dtype=torch.float16):
        self.num_timesteps = num_timesteps
        self.history_per_term = history_per_term
        self.uniform_prob = uniform_prob
        self._loss_history = torch.zeros(num_timesteps, history_per_term, dtype=dtype, device=device)
        self._loss_counts = torch.zeros(num_timesteps, dtype=torch.long, device=device)

    def weights(self):
        if not self._warmed_up():
            return torch.ones(self.num_timesteps, device=device)
        weights = torch.sqrt((self._loss_history ** 2).mean(dim=-1)).float()
        weights /= weights.sum()
        weights *= 1 - self.uniform_prob
        weights += self.uniform_prob / len(weights)
        return weights

    def sample(self, batch_size):
        w = self.weights()
        p = w / w.sum()
        idx = torch.multinomial(p, batch_size, replacement=True)
        return idx, 1 / (len(p) * p[idx])

    def update_with_losses(self, ts, losses):
        losses = losses.to(self._loss_history.dtype)
        for t, loss in zip(ts.tolist(), losses):
            if self._loss_counts[t] == self.history_per_term:
                self._loss_history[t, :-1] = self._loss_history[t, 1:].clone()
                self._loss_history[t, -1] = loss
            else:
                self._loss_history[t, self._loss_counts[t]] = loss
                self._loss_counts[t] += 1

    def _warmed_up(self):
        return bool((self._loss_counts == self.history_per_term).all())


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.temb = nn.Embedding(T, 32)
        self.net = nn.Sequential(nn.Linear(34, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x / UNIT, self.temb(t)], dim=1))


ab = torch.cos((torch.arange(T) + 1) / T * math.pi / 2 * 0.9).pow(2).to(device)
ab = 1 - (1 - ab) * 0.999


def two_rings(n):
    r = torch.where(torch.rand(n) < 0.5, 0.5, 1.0)
    a = torch.rand(n) * 2 * math.pi
    return (torch.stack([r * a.cos(), r * a.sin()], 1) * UNIT).to(device)


def x0_from_eps(xt, eps_hat, t):
    return (xt - (1 - ab[t, None]).sqrt() * eps_hat.float() * UNIT) / ab[t, None].sqrt()


model = Denoiser().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device.type)
sampler = LossSecondMomentResampler(T)

for it in range(ITERS):
    x0 = two_rings(BATCH)
    t, w = sampler.sample(BATCH)
    eps = torch.randn_like(x0) * UNIT
    xt = ab[t, None].sqrt() * x0 + (1 - ab[t, None]).sqrt() * eps
    with torch.autocast(device.type, dtype=torch.float16):
        eps_hat = model(xt, t)
    losses = (x0_from_eps(xt, eps_hat, t) - x0).pow(2).mean(dim=1)
    sampler.update_with_losses(t, losses.detach())
    opt.zero_grad()
    scaler.scale((losses * w).mean()).backward()
    scaler.step(opt)
    scaler.update()
    if it % 80 == 79:
        with torch.no_grad():
            x0 = two_rings(4000)
            err = []
            for lo, hi in ((0, 10), (10, 25), (25, 50)):
                tt = torch.randint(lo, hi, (4000,), device=device)
                xt = ab[tt, None].sqrt() * x0 + (1 - ab[tt, None]).sqrt() * torch.randn_like(x0) * UNIT
                err.append((model(xt, tt) * UNIT - (xt - ab[tt, None].sqrt() * x0) / (1 - ab[tt, None]).sqrt()).pow(2).mean().item() / UNIT ** 2)
        p = sampler.weights()
        print(f"{it+1:4d} loss {losses.mean().item():.5f} eps mse by noise level {['%.4f' % e for e in err]} min p*T {(p*T).min():.4f} n<0.01 {(p*T<0.01).sum().item()} weight max {w.max().item():.0f}")
