"""Duration-based Gaussian upsampling (TTS): centres are a running sum of durations cast to bf16."""

import torch
from torch import nn


class Upsample(nn.Module):
    def forward(self, h, dur):
        c = (torch.cumsum(dur, 1) - 0.5 * dur).to(h.dtype)
        t = torch.arange(int(dur.sum(1).max()))[None, :, None] + 0.5
        w = torch.softmax(-2 * (t - c[:, None]) ** 2, -1)
        return w.to(h.dtype) @ h


class TTS(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.enc, self.up, self.dec = (
            nn.Sequential(nn.Embedding(30, d), nn.Linear(d, d)),
            Upsample(),
            nn.Linear(d, 8),
        )

    def forward(self, ids, dur):
        return self.dec(self.up(self.enc(ids), dur))


def model():
    torch.manual_seed(0)
    m = TTS()
    with torch.no_grad():
        m.enc[1].weight.mul_(3)
    return m


def batch():
    torch.manual_seed(1)
    ids = torch.randint(0, 30, (2, 500))
    dur = torch.randint(1, 3, (2, 500)).float()
    n = int(dur.sum(1).max())
    c = torch.cumsum(dur, 1)
    at = torch.searchsorted(c, torch.arange(n).float().expand(2, -1).contiguous()).clamp(max=499)
    mel = torch.randn(30, 8, generator=torch.Generator().manual_seed(3))[ids.gather(1, at)]
    return ids, dur, mel


def loss(m, b):
    return nn.functional.mse_loss(m(b[0], b[1]).float(), b[2])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["up"],
    "op": "_to_copy,sub,add,_softmax",
    "fp32_fix": ["up"],
    "scaler": "none",
    "source": "jaywalnut310/vits#15; NVIDIA/NeMo FastPitch durations under bf16",
}
