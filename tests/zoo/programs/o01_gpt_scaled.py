"""Word-level GPT on a synthetic grammar, mixed precision with our own loss scaling."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class LossScale:
    """Dynamic loss scale: halve when the loss is not finite, double after `window` good steps."""

    def __init__(self, value=2.0 ** 16, window=6):
        self.value, self.window, self.good = value, window, 0

    def update(self, loss):
        if not math.isfinite(loss):
            self.value, self.good = max(self.value / 2, 1.0), 0
            return
        self.good += 1
        if self.good % self.window == 0:
            self.value *= 2

    def unscale_(self, params):
        for p in params:
            if p.grad is None:
                continue
            p.grad /= self.value
            if not torch.isfinite(p.grad).all():
                p.grad = None       # overflow: leave this weight alone in this step


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, D))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab, length, dim=48, depth=2, heads=3):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.05)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def sample_text(n, length, vocab, gen, table):
    """Each word depends on the two before it."""
    out = torch.randint(vocab, (n, length + 1), generator=gen)
    for t in range(2, length + 1):
        choice = (torch.rand(n, generator=gen) < 0.25).long()
        out[:, t] = table[(out[:, t - 1] + 3 * (out[:, t - 2] % 4)) % vocab, choice]
    return out.to(device)


def main(vocab=64, length=24, batch=32, steps=150, lr=4e-3, seed=6):
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    table = torch.randint(vocab, (vocab, 2), generator=gen)
    model = GPT(vocab, length).to(device)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    scale = LossScale()
    for step in range(steps):
        text = sample_text(batch, length, vocab, gen, table)
        with torch.autocast(device, dtype=torch.float16):
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        opt.zero_grad()
        (loss * scale.value).backward()
        scale.unscale_(params)
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        scale.update(loss.item())
        for group in opt.param_groups:
            group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        if step % 20 == 0:
            print(f"step {step:3d} | loss {loss.item():.4f} | log2 scale {math.log2(scale.value):.0f}")
    text = sample_text(256, length, vocab, gen, table)
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        val = F.cross_entropy(model(text[:, :-1]).float().flatten(0, 1), text[:, 1:].flatten()).item()
    print(f"valid loss {val:.4f} perplexity {math.exp(val):.2f}")


if __name__ == "__main__":
    main()
