"""Class-conditional flow matching with a small DiT, bf16."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from tqdm import tqdm


@dataclass
class Config:
    image_size: int = 16
    patch: int = 4
    dim: int = 48
    depth: int = 2
    heads: int = 4
    num_classes: int = 10
    batch_size: int = 16
    steps: int = 40
    lr: float = 2e-4
    drop_label: float = 0.1


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        nn.init.zeros_(self.ada[1].weight)
        nn.init.zeros_(self.ada[1].bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c).chunk(6, dim=1)
        h = modulate(self.norm1(x), s1, b1)
        x = x + g1.unsqueeze(1) * self.attn(h, h, h, need_weights=False)[0]
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, b2))


class DiT(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.patchify = nn.Conv2d(3, cfg.dim, cfg.patch, cfg.patch)
        self.pos = nn.Parameter(torch.randn(1, (cfg.image_size // cfg.patch) ** 2, cfg.dim) * 0.02)
        self.t_mlp = nn.Sequential(nn.Linear(1, cfg.dim), nn.SiLU(), nn.Linear(cfg.dim, cfg.dim))
        self.y_emb = nn.Embedding(cfg.num_classes + 1, cfg.dim)
        self.blocks = nn.ModuleList(DiTBlock(cfg.dim, cfg.heads) for _ in range(cfg.depth))
        self.final = nn.Linear(cfg.dim, cfg.patch ** 2 * 3)

    def forward(self, x, t, y):
        cfg = self.cfg
        h = self.patchify(x).flatten(2).transpose(1, 2) + self.pos
        c = self.t_mlp(t[:, None]) + self.y_emb(y)
        for b in self.blocks:
            h = b(h, c)
        g = cfg.image_size // cfg.patch
        h = self.final(h).view(-1, g, g, cfg.patch, cfg.patch, 3)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


def main():
    cfg = Config()
    torch.backends.cuda.matmul.allow_tf32 = True
    model = DiT(cfg).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0)
    bar = tqdm(range(cfg.steps), disable=None)
    for step in bar:
        x1 = torch.randn(cfg.batch_size, 3, cfg.image_size, cfg.image_size, device="cuda").tanh()
        y = torch.randint(0, cfg.num_classes, (cfg.batch_size,), device="cuda")
        y = torch.where(torch.rand(cfg.batch_size, device="cuda") < cfg.drop_label, cfg.num_classes, y)
        x0 = torch.randn_like(x1)
        t = torch.rand(cfg.batch_size, device="cuda")
        xt = (1 - t.view(-1, 1, 1, 1)) * x0 + t.view(-1, 1, 1, 1) * x1
        with torch.autocast("cuda", torch.bfloat16):
            v = model(xt, t, y)
            loss = ((v - (x1 - x0)) ** 2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
    torch.save(model.state_dict(), "dit.pt")


if __name__ == "__main__":
    main()
