"""Denoiser inside a GaussianDiffusion module that returns the loss; a Trainer class around it."""
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset


def exists(x):
    return x is not None


def default(val, d):
    return val if exists(val) else d


def cycle(dl):
    while True:
        yield from dl


class Denoiser(nn.Module):
    def __init__(self, dim, channels=3):
        super().__init__()
        self.channels = channels
        self.time = nn.Embedding(1000, dim)
        self.inp = nn.Conv2d(channels, dim, 3, padding=1)
        self.body = nn.Sequential(nn.SiLU(), nn.Conv2d(dim, dim, 3, padding=1), nn.SiLU(), nn.Conv2d(dim, channels, 3, padding=1))

    def forward(self, x, time, cond=None):
        h = self.inp(x) + self.time(time)[:, :, None, None]
        if exists(cond):
            h = h + cond
        return self.body(h)


class GaussianDiffusion(nn.Module):
    def __init__(self, model, *, image_size, timesteps=1000):
        super().__init__()
        self.model, self.image_size, self.num_timesteps = model, image_size, timesteps
        betas = torch.linspace(1e-4, 0.02, timesteps)
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - betas, 0))

    def p_losses(self, x_start, t, noise=None):
        noise = default(noise, torch.randn_like(x_start))
        a = self.alphas_cumprod[t].view(-1, 1, 1, 1)
        x = a.sqrt() * x_start + (1 - a).sqrt() * noise
        return F.mse_loss(self.model(x, t), noise)

    def forward(self, img, *args, **kwargs):
        b, c, h, w = img.shape
        assert h == self.image_size and w == self.image_size, f"height and width of image must be {self.image_size}"
        t = torch.randint(0, self.num_timesteps, (b,), device=img.device).long()
        return self.p_losses(img * 2 - 1, t, *args, **kwargs)


class Images(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.rand(3, self.size, self.size, generator=torch.Generator().manual_seed(index))


class Trainer:
    def __init__(self, diffusion_model, *, train_batch_size=8, gradient_accumulate_every=2, train_lr=1e-4,
                 train_num_steps=30, save_every=10, amp=True, results_folder="./results", max_grad_norm=1.0):
        self.model = diffusion_model.cuda()
        self.gradient_accumulate_every, self.train_num_steps, self.save_every = gradient_accumulate_every, train_num_steps, save_every
        self.dl = cycle(DataLoader(Images(200, diffusion_model.image_size), batch_size=train_batch_size, shuffle=True))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=train_lr)
        self.scaler = GradScaler("cuda", enabled=amp)
        self.amp, self.max_grad_norm = amp, max_grad_norm
        self.results_folder = Path(results_folder)
        self.results_folder.mkdir(exist_ok=True)

    def save(self, milestone):
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict(), "scaler": self.scaler.state_dict()},
                   str(self.results_folder / f"model-{milestone}.pt"))

    def train(self):
        for step in range(1, self.train_num_steps + 1):
            total_loss = 0.0
            for _ in range(self.gradient_accumulate_every):
                data = next(self.dl).cuda()
                with autocast("cuda", enabled=self.amp):
                    loss = self.model(data)
                total_loss += loss.item()
                self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            self.scaler.step(self.opt)
            self.scaler.update()
            self.opt.zero_grad()
            if step % self.save_every == 0:
                self.save(step // self.save_every)
                print(f"{step}: {total_loss:.4f}")


def main():
    model = Denoiser(dim=16)
    diffusion = GaussianDiffusion(model, image_size=16, timesteps=1000)
    Trainer(diffusion).train()


if __name__ == "__main__":
    main()
