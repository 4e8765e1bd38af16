"""Small mixture-of-experts language model with bias-based (auxiliary-loss-free) load balancing."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Config:
    vocab: int = 256
    dim: int = 64
    hidden: int = 96
    experts: int = 8
    top_k: int = 2
    layers: int = 2
    seq: int = 64
    batch: int = 12
    steps: int = 160
    lr: float = 1e-3
    bias_rate: float = 0.08
    bias_every: int = 4
    dtype: torch.dtype = torch.bfloat16


class Router(nn.Module):
    """The bias only takes part in the choice of experts, never in the mixing weights."""

    def __init__(self, cfg):
        super().__init__()
        self.top_k = cfg.top_k
        self.rate = cfg.bias_rate
        self.proj = nn.Linear(cfg.dim, cfg.experts, bias=False)
        self.register_buffer("expert_bias", torch.zeros(cfg.experts))
        self.register_buffer("load", torch.zeros(cfg.experts, dtype=cfg.dtype), persistent=False)

    def forward(self, x):
        logits = self.proj(x)
        chosen = (logits.detach() + self.expert_bias).topk(self.top_k, dim=-1).indices
        weights = logits.gather(-1, chosen).softmax(-1)
        if self.training:
            hit = chosen.flatten()
            self.load.index_add_(0, hit, torch.ones(hit.shape, dtype=self.load.dtype, device=hit.device))
        return weights, chosen

    @torch.no_grad()
    def update_bias(self):
        load = self.load.float()
        violation = 1 - load / load.mean()
        self.expert_bias += self.rate * violation
        worst = violation.abs().max().item()
        self.load.zero_()
        return worst


class MoE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm = nn.LayerNorm(cfg.dim)
        self.router = Router(cfg)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.dim))
            for _ in range(cfg.experts))

    def forward(self, x):
        flat = self.norm(x).reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            row, slot = (chosen == e).nonzero(as_tuple=True)
            if row.numel():
                out.index_add_(0, row, (expert(flat[row]) * weights[row, slot, None]).to(out.dtype))
        return x + out.view_as(x)


class Mixer(nn.Module):
    """Causal token mixing by a short depthwise convolution."""

    def __init__(self, cfg, width=4):
        super().__init__()
        self.width = width
        self.norm = nn.LayerNorm(cfg.dim)
        self.conv = nn.Conv1d(cfg.dim, cfg.dim, width, groups=cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x):
        h = F.pad(self.norm(x).transpose(1, 2), (self.width - 1, 0))
        return x + self.out(F.silu(self.conv(h).transpose(1, 2)))


class MoELM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(m for _ in range(cfg.layers) for m in (Mixer(cfg), MoE(cfg)))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def routers(self):
        return [m for m in self.modules() if isinstance(m, Router)]


def corpus(cfg, gen):
    """Zipf-distributed first-order Markov text."""
    zipf = 1.0 / torch.arange(1, cfg.vocab + 1)
    table = torch.stack([torch.multinomial(zipf, 6, generator=gen) for _ in range(cfg.vocab)])
    while True:
        ids = torch.empty(cfg.batch, cfg.seq + 1, dtype=torch.long)
        ids[:, 0] = torch.multinomial(zipf, cfg.batch, replacement=True, generator=gen)
        pick = torch.multinomial(1.0 / torch.arange(1, 7), cfg.batch * cfg.seq, replacement=True, generator=gen)
        for t in range(cfg.seq):
            ids[:, t + 1] = table[ids[:, t], pick.view(cfg.batch, -1)[:, t]]
        yield ids.to(device)


def main(cfg=Config()):
    torch.manual_seed(0)
    data = corpus(cfg, torch.Generator().manual_seed(1))
    model = MoELM(cfg).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    recent = []
    for step in range(cfg.steps):
        ids = next(data)
        with torch.autocast(device, dtype=cfg.dtype):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % cfg.bias_every == cfg.bias_every - 1:
            recent = (recent + [max(r.update_bias() for r in model.routers())])[-10:]
        if step % 20 == 0 or step == cfg.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}  max violation {sum(recent) / max(1, len(recent)):.3f}")
    return model


if __name__ == "__main__":
    main()
