"""StyleGAN2 modulated convolution: weight * style squared in half for the demodulation coefficient."""

import torch
from torch import nn


class ModConv(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.weight, self.affine = nn.Parameter(torch.randn(o, i, 3, 3)), nn.Linear(s, i)

    def forward(self, x, style):
        s = self.affine(style)
        w = self.weight.to(x.dtype)[None] * s[:, None, :, None, None].to(x.dtype)
        d = ((w * w).sum((2, 3, 4)) + 1e-8).rsqrt()
        w = w * d[:, :, None, None, None].to(w.dtype)
        b, _, h, ww = x.shape
        out = nn.functional.conv2d(x.reshape(1, -1, h, ww), w.flatten(0, 1), padding=1, groups=b)
        return out.reshape(b, -1, h, ww)


class Synthesis(nn.Module):
    def __init__(self):
        super().__init__()
        self.const, self.conv_in = nn.Parameter(torch.randn(1, 8, 8, 8)), nn.Conv2d(8, 8, 1)
        self.mapping, self.conv, self.rgb = nn.Linear(12, 12), ModConv(8, 10, 12), nn.Conv2d(10, 3, 1)

    def forward(self, z):
        h = self.conv_in(self.const.expand(len(z), -1, -1, -1))
        return self.rgb(nn.functional.leaky_relu(self.conv(h, self.mapping(z)), 0.2))


def model():
    torch.manual_seed(0)
    m = Synthesis()
    with torch.no_grad():
        m.conv.affine.weight.mul_(250)
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 12), torch.rand(4, 3, 8, 8)


def loss(m, b):
    return nn.functional.mse_loss(m(b[0]), b[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["conv"],
    "op": "mul",
    "fp32_fix": ["conv"],
    "scaler": "none",
    "source": "NVlabs/stylegan2-ada-pytorch modulated_conv2d pre-normalisation (fp16 note)",
}
