# ELECTRA in small: generator fills masked tokens, discriminator spots replacements.
# Two optimizers, each with its own home-grown loss scale; four micro-batches per step.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, MASK, LEN, MICRO, ACCUM = 50, 0, 16, 16, 4


class LossScale:
    """halve on overflow and drop the step, double after `patience` clean ones"""

    def __init__(self, power, patience=500):
        self.value, self.patience, self.clean, self.dropped = 2.0 ** power, patience, 0, 0

    def step(self, opt, params, max_norm):
        grads = [p.grad for p in params]
        if not all(torch.isfinite(g).all() for g in grads):
            self.value, self.clean, self.dropped = self.value / 2, 0, self.dropped + 1
            return
        for g in grads:
            g.div_(self.value)
        nn.utils.clip_grad_norm_(params, max_norm)
        opt.step()
        self.clean += 1
        if self.clean % self.patience == 0:
            self.value *= 2


class Reader(nn.Module):
    def __init__(self, width, n_out):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width)
        self.mix = nn.Conv1d(width, width, 5, padding=2)
        self.norm = nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, n_out))

    def forward(self, ids):
        x = self.emb(ids)
        x = self.norm(x + F.gelu(self.mix(x.transpose(1, 2))).transpose(1, 2))
        return self.ff(x)


def text(gen):
    first = torch.randint(1, VOCAB, (MICRO, 1), generator=gen)
    stride = torch.randint(1, 4, (MICRO, 1), generator=gen)
    ids = 1 + (first + stride * torch.arange(LEN)) % (VOCAB - 1)
    return ids.to(device), (torch.rand(MICRO, LEN, generator=gen) < 0.2).to(device)


gen = torch.Generator().manual_seed(12)
generator, discriminator = Reader(24, VOCAB).to(device), Reader(48, 1).to(device)
g_params, d_params = list(generator.parameters()), list(discriminator.parameters())
g_opt = torch.optim.AdamW(g_params, lr=3e-3)
d_opt = torch.optim.AdamW(d_params, lr=3e-3)
g_scale, d_scale = LossScale(18), LossScale(22)

for step in range(90):
    g_opt.zero_grad()
    d_opt.zero_grad()
    g_sum = d_sum = 0.0
    for _ in range(ACCUM):
        ids, masked = text(gen)
        with torch.autocast(device_type=device, dtype=torch.float16):
            guess = generator(ids.masked_fill(masked, MASK))
            g_loss = F.cross_entropy(guess[masked], ids[masked])
            filled = torch.where(masked, guess.detach().argmax(-1), ids)
            fake = (filled != ids).float()
            verdict = discriminator(filled).squeeze(-1)
            d_loss = F.binary_cross_entropy_with_logits(verdict.float(), fake)
        (g_loss * g_scale.value / ACCUM).backward()
        (d_loss * d_scale.value / ACCUM).backward()
        g_sum += g_loss.item() / ACCUM
        d_sum += d_loss.item() / ACCUM
    g_scale.step(g_opt, g_params, 1.0)
    d_scale.step(d_opt, d_params, 1.0)
    if step % 15 == 0 or step == 89:
        print(f"step {step:2d}  generator {g_sum:.4f}  discriminator {d_sum:.4f}  "
              f"scales {g_scale.value:.0f}/{d_scale.value:.0f}")
print("dropped steps", g_scale.dropped, d_scale.dropped)
