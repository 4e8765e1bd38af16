"""Next-glyph model for a made-up syllabary; the shipped weights are a running polynomial average of the trained ones."""
import copy
import torch
from torch import nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CONTEXT = 28, 4


class Corpus:
    """Third-order text: the next glyph depends on the last two and on a slowly changing topic glyph."""

    def __init__(self, seed, length=40000):
        g = torch.Generator().manual_seed(seed)
        rule = torch.randint(0, VOCAB, (VOCAB, VOCAB), generator=torch.Generator().manual_seed(7)).tolist()
        u = torch.rand(length, generator=g).tolist()
        r = torch.randint(0, VOCAB, (length,), generator=g).tolist()
        text = r[:CONTEXT]
        for t in range(CONTEXT, length):
            nxt = rule[text[-1]][text[-2] // 4 * 4]
            text.append(nxt if u[t] < 0.8 else r[t])
        self.text = torch.tensor(text)
        self.g = g

    def batch(self, n):
        at = torch.randint(CONTEXT, len(self.text), (n,), generator=self.g)
        ctx = self.text[at[:, None] + torch.arange(-CONTEXT, 0)]
        return ctx.to(device), self.text[at].to(device)


class Glyphs(nn.Module):
    def __init__(self, width=24, hidden=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width)
        self.up = nn.Linear(CONTEXT * width, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, ctx):
        h = F.gelu(self.up(self.emb(ctx).flatten(1)))
        return self.out(h + F.gelu(self.mid(h)))


class Averager:
    def __init__(self, model, eta=3, dtype=torch.float32):
        self.shipped = copy.deepcopy(model).to(dtype).requires_grad_(False)
        self.eta, self.t = eta, 0

    @torch.no_grad()
    def update(self, model):
        self.t += 1
        share = (self.eta + 1) / (self.t + self.eta)
        for a, p in zip(self.shipped.parameters(), model.parameters()):
            a.lerp_(p.to(a.dtype), share)

    @torch.no_grad()
    def score(self, ctx, nxt):
        logits = self.shipped(ctx).float()
        return F.cross_entropy(logits, nxt).item(), (logits.argmax(1) == nxt).float().mean().item()


def main():
    torch.manual_seed(111)
    corpus, fresh = Corpus(1), Corpus(2)
    model = Glyphs().to(device)
    average = Averager(model, dtype=torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    test = fresh.batch(4000)
    for step in range(300):
        ctx, nxt = corpus.batch(192)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ctx)
        loss = F.cross_entropy(logits.float(), nxt)
        opt.zero_grad()
        loss.backward()
        opt.step()
        average.update(model)
        if step % 60 == 0:
            print(f"step {step:3d} loss {loss.item():.4f} shipped {average.score(*test)[0]:.4f}")
    nll, acc = average.score(*test)
    print(f"shipped model nll {nll:.4f} accuracy {acc:.3f}")
    return nll, acc


if __name__ == "__main__":
    main()
