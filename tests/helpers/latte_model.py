"""A small video diffusion transformer in the manner of Latte: blocks over space and time in turn, checkpointed.

Says `model`, `batch` and `loss` for `ampcheck check`, and trains a few steps when it is run.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

FRAMES, SIZE, PATCH, WIDTH, STEPS = 4, 8, 2, 32, 1000


def embedded(times, width):
    """Return the sinusoidal embedding of diffusion times."""
    frequencies = torch.exp(-9.21 * torch.arange(width // 2, device=times.device) / (width // 2))
    angles = times[:, None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        nn.init.normal_(self.modulation[1].weight, std=0.02)

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Latte(nn.Module):
    def __init__(self, depth=4, checkpointed=True):
        super().__init__()
        self.patch = nn.Conv2d(4, WIDTH, PATCH, PATCH)
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.out = nn.Linear(WIDTH, 4 * PATCH**2)
        self.frame = nn.Parameter(0.02 * torch.randn(FRAMES, WIDTH))
        self.checkpointed = checkpointed

    def forward(self, video, times):
        batch = video.shape[0]
        x = self.patch(video.flatten(0, 1)).flatten(2).transpose(1, 2)
        condition = self.time(embedded(times, WIDTH))
        for index, block in enumerate(self.blocks):
            if index % 2:  # over time: the patches are the batch
                x = x.unflatten(0, (batch, FRAMES)).transpose(1, 2).flatten(0, 1)
                x = x + self.frame if index == 1 else x
                x = self.ran(block, x, condition.repeat_interleave(len(x) // batch, dim=0))
                x = x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(0, 1)
            else:
                x = self.ran(block, x, condition.repeat_interleave(FRAMES, dim=0))
        side = SIZE // PATCH
        x = self.out(self.norm(x)).unflatten(1, (side, side)).unflatten(-1, (PATCH, PATCH, 4))
        return torch.einsum("nhwpqc->nchpwq", x).reshape(batch, FRAMES, 4, SIZE, SIZE)

    def ran(self, block, *inputs):
        return checkpoint(block, *inputs, use_reentrant=False) if self.checkpointed else block(*inputs)


def model():
    torch.manual_seed(0)
    return Latte()


def batch():
    torch.manual_seed(1)
    return (
        torch.randn(2, FRAMES, 4, SIZE, SIZE),
        torch.randint(0, STEPS, (2,)),
        torch.randn(2, FRAMES, 4, SIZE, SIZE),
    )


def loss(model, batch):
    clean, times, noise = batch
    kept = torch.cos(times.float() / STEPS * 1.57).view(-1, 1, 1, 1, 1)
    noisy = kept * clean + (1 - kept**2).clamp(min=0).sqrt() * noise
    return nn.functional.mse_loss(model(noisy, times).float(), noise)


def main(steps=4):
    net = model().cuda()
    optimizer, scaler = torch.optim.AdamW(net.parameters(), 1e-4), torch.amp.GradScaler("cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            value = loss(net, tuple(part.cuda() for part in batch()))
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        print(f"{value.item():.6f}")


if __name__ == "__main__":
    main()
