"""Denoising diffusion on 16x16 images, EMA weights, fp16."""
import argparse
import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, ch, out, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, ch), nn.Conv2d(ch, out, 3, padding=1)
        self.emb = nn.Linear(emb, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(ch, out, 1) if ch != out else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(emb)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, in_ch=3, ch=16, emb=32):
        super().__init__()
        self.ch = ch
        self.time = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(in_ch, ch, 3, padding=1)
        self.d1, self.d2 = ResBlock(ch, ch, emb), ResBlock(ch, 2 * ch, emb)
        self.mid = ResBlock(2 * ch, 2 * ch, emb)
        self.u1, self.u2 = ResBlock(4 * ch, ch, emb), ResBlock(2 * ch, ch, emb)
        self.out = nn.Sequential(nn.GroupNorm(4, ch), nn.SiLU(), nn.Conv2d(ch, in_ch, 3, padding=1))

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.ch))
        h1 = self.d1(self.inp(x), emb)
        h2 = self.d2(F.avg_pool2d(h1, 2), emb)
        h = self.mid(h2, emb)
        h = self.u1(torch.cat([h, h2], 1), emb)
        h = self.u2(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), emb)
        return self.out(h)


class EMA:
    def __init__(self, beta):
        self.beta = beta

    @torch.no_grad()
    def update(self, ema_model, model):
        for a, b in zip(ema_model.parameters(), model.parameters()):
            a.lerp_(b, 1 - self.beta)


class Diffusion:
    def __init__(self, steps=100, device="cuda"):
        beta = torch.linspace(1e-4, 0.02, steps, device=device)
        self.alpha_hat = torch.cumprod(1 - beta, 0)
        self.steps, self.device = steps, device

    def noise_images(self, x, t):
        a = self.alpha_hat[t][:, None, None, None]
        eps = torch.randn_like(x)
        return a.sqrt() * x + (1 - a).sqrt() * eps, eps

    def sample_timesteps(self, n):
        return torch.randint(0, self.steps, (n,), device=self.device)


def train(args):
    device = args.device
    model = UNet().to(device)
    ema_model = copy.deepcopy(model).eval().requires_grad_(False)
    ema = EMA(0.995)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.cuda.amp.GradScaler()
    diffusion = Diffusion(device=device)
    images = torch.rand(160, 3, 16, 16) * 2 - 1
    for epoch in range(args.epochs):
        for i in range(0, len(images), args.batch_size):
            x = images[i:i + args.batch_size].to(device)
            t = diffusion.sample_timesteps(x.shape[0])
            with torch.autocast("cuda", dtype=torch.float16):
                x_t, noise = diffusion.noise_images(x, t)
                loss = F.mse_loss(noise, model(x_t, t))
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            ema.update(ema_model, model)
        print(f"epoch {epoch}: mse {loss.item():.4f}")
        os.makedirs("models", exist_ok=True)
        torch.save(ema_model.state_dict(), os.path.join("models", f"{args.run_name}.pt"))


def launch():
    parser = argparse.ArgumentParser()
    args = parser.parse_args()
    args.run_name, args.epochs, args.batch_size, args.lr, args.device = "DDPM_tiny", 3, 16, 3e-4, "cuda"
    train(args)


if __name__ == "__main__":
    launch()
