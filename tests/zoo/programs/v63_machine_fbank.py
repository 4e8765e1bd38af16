"""Filterbank reconstruction on machine recordings, with a small loss scaler for FP16."""

import math

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"

BANDS = 40
FRAMES = 80


class LossScaler:
    """Dynamic loss scale after the recipe of mixed precision training."""

    def __init__(self, scale=2.0**12, factor=4.0, window=500):
        self.scale = scale
        self.factor = factor
        self.window = window
        self.clean = 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def unscale(self, params):
        grads = [p.grad for p in params if p.grad is not None]
        for grad in grads:
            grad.div_(self.scale)
        return all(torch.isfinite(grad).all() for grad in grads)

    def update(self, finite):
        if not finite:
            self.scale /= self.factor
            self.clean = 0
            return
        self.clean += 1
        if self.clean % self.window == 0:
            self.scale *= self.factor


class Autoencoder(nn.Module):
    def __init__(self, hidden=64, code=12):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(BANDS, hidden), nn.Tanh(), nn.Linear(hidden, code), nn.Tanh())
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.Tanh(), nn.Linear(hidden, BANDS))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Recordings:
    """Band energies of a machine; the sensor saturates in some frames."""

    def __init__(self, seed):
        self.gen = torch.Generator()
        self.gen.manual_seed(seed)
        self.mix = torch.randn(6, BANDS, generator=self.gen) / math.sqrt(6)

    def batch(self, index, size=8):
        t = torch.linspace(0, 4 * math.pi, FRAMES)[None, :, None]
        rate = 1 + torch.rand(size, 1, 6, generator=self.gen)
        clean = torch.sin(rate * t + 6 * torch.rand(size, 1, 6, generator=self.gen)) @ self.mix
        noisy = clean + 0.05 * torch.randn(clean.shape, generator=self.gen)
        if index % 4 == 3:
            clip = int(torch.randint(0, size, (1,), generator=self.gen))
            frame = int(torch.randint(0, FRAMES, (1,), generator=self.gen))
            noisy[clip, frame, 0] = 1.0e5
        return noisy.to(device), clean.to(device)


def main():
    torch.manual_seed(40)
    data = Recordings(41)
    model = Autoencoder().to(device)
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=1.0, momentum=0.9)
    scaler = LossScaler()
    skipped = 0

    for step in range(80):
        noisy, clean = data.batch(step)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        scaler.backward(loss)
        finite = scaler.unscale(params)
        if finite:
            nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
        else:
            skipped += 1
        scaler.update(finite)
        if (step + 1) % 16 == 0:
            print(f"step {step + 1} loss {loss.item():.4f} skipped {skipped}")

    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        noisy, clean = data.batch(0, 64)
        print(f"test mse {F.mse_loss(model(noisy), clean).item():.4f}")


if __name__ == "__main__":
    main()
