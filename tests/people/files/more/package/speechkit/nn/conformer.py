import torch
from torch import nn

from .layers import ConvModule, FeedForward


class ConformerBlock(nn.Module):
    def __init__(self, dim, heads, kernel):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(dim), FeedForward(dim)
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.conv = ConvModule(dim, kernel)
        self.out = nn.LayerNorm(dim)

    def forward(self, x, mask):
        x = x + 0.5 * self.ff1(x)
        h = self.norm(x)
        x = x + self.attn(h, h, h, key_padding_mask=mask, need_weights=False)[0]
        x = x + self.conv(x)
        return self.out(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    def __init__(self, n_mels, vocab, dim=96, depth=2, heads=4, kernel=15):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(n_mels, dim, 3, 2, 1), nn.ReLU(), nn.Conv1d(dim, dim, 3, 2, 1), nn.ReLU())
        self.blocks = nn.ModuleList(ConformerBlock(dim, heads, kernel) for _ in range(depth))
        self.ctc = nn.Linear(dim, vocab)

    def forward(self, mels, lengths):
        x = self.sub(mels.transpose(1, 2)).transpose(1, 2)
        lengths = torch.div(lengths + 3, 4, rounding_mode="floor")
        mask = torch.arange(x.size(1), device=x.device)[None] >= lengths[:, None]
        for block in self.blocks:
            x = block(x, mask)
        return self.ctc(x).log_softmax(-1), lengths
