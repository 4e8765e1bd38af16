# Skip-gram with negative sampling on a synthetic topic corpus.
# Word vectors in bf16-friendly form; noise words are drawn by inverse transform from the smoothed unigram table.
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, TOPICS, DIM, NEG = 3000, 30, 32, 6
device = "cuda" if torch.cuda.is_available() else "cpu"


def corpus(gen):
    rank = torch.arange(1, VOCAB + 1).float()
    freq = 1 / (rank + 20) ** 0.8
    topic_of = torch.randint(0, TOPICS, (VOCAB,), generator=gen)
    return freq / freq.sum(), topic_of


def pairs(freq, topic_of, n, gen):
    """Centre word by frequency, context from the same topic four times in five."""
    centre = torch.multinomial(freq, n, replacement=True, generator=gen)
    table = freq[None] * (topic_of[None] == torch.arange(TOPICS)[:, None])
    same = torch.multinomial(table, 4000, replacement=True, generator=gen)
    slot = torch.randint(0, 4000, (n,), generator=gen)
    context = same[topic_of[centre], slot]
    stray = torch.multinomial(freq, n, replacement=True, generator=gen)
    keep = torch.rand(n, generator=gen) < 0.8
    return centre, torch.where(keep, context, stray)


class NoiseTable:
    def __init__(self, freq, power=0.75, dtype=torch.bfloat16):
        p = freq ** power
        self.cdf = torch.cumsum((p / p.sum()).to(dtype).to(device), 0)

    def draw(self, shape, gen):
        u = torch.rand(shape, generator=gen).to(device).to(self.cdf.dtype)
        return torch.searchsorted(self.cdf, u).clamp_(max=VOCAB - 1)


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Embedding(VOCAB, DIM)
        self.context = nn.Embedding(VOCAB, DIM)
        nn.init.normal_(self.centre.weight, std=0.3)
        nn.init.normal_(self.context.weight, std=0.3)

    def forward(self, c, pos, neg):
        c = self.centre(c)
        good = torch.einsum("bd,bd->b", c, self.context(pos))
        bad = torch.einsum("bd,bkd->bk", c, self.context(neg))
        return good, bad


gen = torch.Generator().manual_seed(17)
torch.manual_seed(17)
freq, topic_of = corpus(gen)
noise = NoiseTable(freq)
model = SkipGram().to(device)
opt = torch.optim.Adam(model.parameters(), lr=2e-2)


def retrieval():
    """For every word: how often does a word of its own topic outrank a random word, by predicted affinity."""
    with torch.no_grad():
        s = model.centre.weight.cpu() @ model.context.weight.cpu().T
    g = torch.Generator().manual_seed(99)
    a = torch.randint(0, VOCAB, (20000,), generator=g)
    b = torch.randint(0, VOCAB, (20000,), generator=g)
    w = torch.randint(0, VOCAB, (20000,), generator=g)
    ok = (topic_of[w] == topic_of[a]) & (topic_of[w] != topic_of[b])
    return (s[w, a] > s[w, b])[ok].float().mean().item()


for step in range(240):
    c, pos = (x.to(device) for x in pairs(freq, topic_of, 2048, gen))
    neg = noise.draw((2048, NEG), gen)
    with torch.autocast(device, dtype=torch.bfloat16):
        good, bad = model(c, pos, neg)
        loss = -(F.logsigmoid(good.float()).mean() + F.logsigmoid(-bad.float()).sum(1).mean())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 60 == 0:
        print(f"{step + 1:4d} loss {loss.item():.4f} same-topic ranking {retrieval():.4f}")
print(f"final ranking accuracy {retrieval():.4f}")
