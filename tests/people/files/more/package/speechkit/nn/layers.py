from torch import nn


class FeedForward(nn.Sequential):
    def __init__(self, dim, mult=4):
        super().__init__(nn.LayerNorm(dim), nn.Linear(dim, dim * mult), nn.SiLU(), nn.Dropout(0.1), nn.Linear(dim * mult, dim))


class ConvModule(nn.Module):
    def __init__(self, dim, kernel):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.body = nn.Sequential(nn.Conv1d(dim, 2 * dim, 1), nn.GLU(1), nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim),
                                  nn.BatchNorm1d(dim), nn.SiLU(), nn.Conv1d(dim, dim, 1))

    def forward(self, x):
        return self.body(self.norm(x).transpose(1, 2)).transpose(1, 2)
