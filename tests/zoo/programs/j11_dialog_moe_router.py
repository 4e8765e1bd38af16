"""Intent tagging with a mixture of experts; a balance term and a router z-term, both with small weights, in bf16."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Experts(nn.Module):
    def __init__(self, n, dim, hidden):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(n, dim, hidden) / dim ** 0.5)
        self.w2 = nn.Parameter(torch.randn(n, hidden, dim) / hidden ** 0.5)

    def forward(self, x, gate, choice):
        out = torch.zeros_like(x)
        for k in range(len(self.w1)):
            at = (choice == k).nonzero().squeeze(1)
            if len(at):
                h = F.gelu(x[at] @ self.w1[k]) @ self.w2[k]
                out = out.index_add(0, at, (h * gate[at, k:k + 1]).to(out.dtype))
        return out


class MoETagger(nn.Module):
    def __init__(self, vocab, tags, dim=32, experts=6):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.ctx = nn.Conv1d(dim, dim, 3, padding=1)
        self.norm = nn.LayerNorm(dim)
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = Experts(experts, dim, 48)
        self.out = nn.Linear(dim, tags)

    def forward(self, idx):
        e = self.emb(idx)
        h = F.gelu(self.ctx(e.transpose(1, 2))).transpose(1, 2).flatten(0, 1)
        h = self.norm(h)
        logits = self.router(h)
        gate = logits.softmax(-1)
        choice = gate.argmax(-1)
        y = h + self.experts(h, gate, choice)
        load = F.one_hot(choice, gate.shape[1]).float().mean(0)
        balance = gate.shape[1] * (load * gate.float().mean(0)).sum()
        z = torch.logsumexp(logits.float(), -1).pow(2).mean()
        return self.out(y), balance, z, load


class Utterances:
    """The tag of a word depends on the word and on both its neighbours; a few words are very rare."""

    def __init__(self, vocab, tags, seed):
        world = torch.Generator().manual_seed(8)
        self.p = 1.0 / (torch.arange(vocab).float() + 2)
        self.here = torch.randn(vocab, tags, generator=world) * 2
        self.left = torch.randn(vocab, tags, generator=world)
        self.right = torch.randn(vocab, tags, generator=world)
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, b, t):
        x = torch.multinomial(self.p, b * (t + 2), True, generator=self.g).view(b, t + 2)
        s = self.here[x[:, 1:-1]] + self.left[x[:, :-2]] + self.right[x[:, 2:]]
        return x, s.argmax(-1)


def run(model, batch, device):
    x, y = (t.to(device) for t in batch)
    logits, balance, z, load = model(x)
    logits = logits.view(*x.shape, -1)[:, 1:-1]
    return F.cross_entropy(logits.flatten(0, 1), y.flatten()), balance, z, load, logits.argmax(-1) == y


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="bf16", choices=DTYPES)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--balance", type=float, default=1e-2)
    ap.add_argument("--zeta", type=float, default=1e-5)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = DTYPES[a.precision]
    torch.manual_seed(a.seed)
    model = MoETagger(60, 12).to(device)
    data = Utterances(60, 12, a.seed + 20)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    for step in range(a.steps):
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            ce, balance, z, load, _ = run(model, data.batch(64, 24), device)
            loss = ce + a.balance * balance + a.zeta * z
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} ce {ce.item():.4f} balance {balance.item():.3f} z {z.item():.3f}")
    with torch.no_grad(), torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
        ce, balance, z, load, hit = run(model, Utterances(60, 12, 4040).batch(256, 24), device)
    acc = hit.float().mean().item()
    print(f"test accuracy {acc:.4f} ce {ce.item():.4f} balance {balance.item():.3f} least load {load.min().item():.3f}")
    return {"accuracy": acc, "ce": ce.item(), "balance": balance.item(), "z": z.item(), "least": load.min().item()}


if __name__ == "__main__":
    main()
