"""UNet with cross attention on a context, no training code."""
import math
from typing import Optional, Tuple

import torch
from torch import nn


def sinusoidal(timesteps: torch.Tensor, dim: int) -> torch.Tensor:
    half = dim // 2
    freq = torch.exp(-math.log(10_000) * torch.arange(half, device=timesteps.device) / (half - 1))
    angle = timesteps.float()[:, None] * freq[None]
    return torch.cat([angle.sin(), angle.cos()], 1)


class CrossAttention(nn.Module):
    def __init__(self, channels: int, context_dim: int, heads: int = 4):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.attn = nn.MultiheadAttention(channels, heads, kdim=context_dim, vdim=context_dim, batch_first=True)

    def forward(self, x, context):
        b, c, h, w = x.shape
        q = self.norm(x).flatten(2).transpose(1, 2)
        out, _ = self.attn(q, context, context, need_weights=False)
        return x + out.transpose(1, 2).reshape(b, c, h, w)


class TimeBlock(nn.Module):
    def __init__(self, channels: int, time_dim: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)
        self.time = nn.Linear(time_dim, channels)

    def forward(self, x, temb):
        return x + nn.functional.silu(self.norm(self.conv(x)) + self.time(temb)[..., None, None])


class ConditionalUNet(nn.Module):
    """Predicts the noise.

    Args:
        sample_size: height and width of the images.
        in_channels: channels of the images.
        context_dim: width of the text embeddings.
    """

    def __init__(self, sample_size: int = 16, in_channels: int = 4, base: int = 16, context_dim: int = 24, time_dim: int = 32,
                 attention: Tuple[bool, ...] = (False, True)):
        super().__init__()
        self.sample_size, self.time_dim = sample_size, time_dim
        self.stem = nn.Conv2d(in_channels, base, 3, padding=1)
        self.blocks = nn.ModuleList(TimeBlock(base, time_dim) for _ in attention)
        self.attns = nn.ModuleList(CrossAttention(base, context_dim) if a else nn.Identity() for a in attention)
        self.time_mlp = nn.Sequential(nn.Linear(time_dim, time_dim), nn.SiLU(), nn.Linear(time_dim, time_dim))
        self.head = nn.Conv2d(base, in_channels, 3, padding=1)

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        sample: (batch, in_channels, height, width) noisy images
        timestep: (batch,) integer steps, 0 to 999
        encoder_hidden_states: (batch, tokens, context_dim) text embeddings
        """
        temb = self.time_mlp(sinusoidal(timestep, self.time_dim))
        h = self.stem(sample)
        for block, attn in zip(self.blocks, self.attns):
            h = block(h, temb)
            if isinstance(attn, CrossAttention):
                if encoder_hidden_states is None:
                    raise ValueError("encoder_hidden_states are needed")
                h = attn(h, encoder_hidden_states)
        return self.head(h)
