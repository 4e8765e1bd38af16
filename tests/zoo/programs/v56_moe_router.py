"""A small mixture-of-experts language model whose router is balanced by the load each expert has had."""

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, EXPERTS, TOP_K = 96, 48, 8, 2
BATCH, LENGTH, STEPS = 12, 25, 60

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Router(nn.Module):
    """Picks the experts of a token; experts that have had more than their share are picked less readily."""

    def __init__(self, dim, experts, top_k, strength=200.0, momentum=0.999):
        super().__init__()
        self.proj = nn.Linear(dim, experts, bias=False)
        self.top_k = top_k
        self.strength = strength
        self.momentum = momentum
        self.load = None

    def forward(self, x):
        logits = self.proj(x)
        experts = logits.shape[-1]
        if self.load is None:
            self.load = logits.new_full((experts,), 1 / experts)
        with torch.no_grad():
            excess = self.load * experts - 1
            picked = (logits - self.strength * excess).topk(self.top_k, dim=-1).indices
        if self.training:
            share = torch.bincount(picked.flatten(), minlength=experts) / picked.numel()
            self.load += (1 - self.momentum) * (share - self.load)
        weights = logits.gather(-1, picked).softmax(dim=-1)
        return picked, weights


class MoE(nn.Module):
    def __init__(self, dim, hidden, experts, top_k):
        super().__init__()
        self.router = Router(dim, experts, top_k)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(experts))
        self.last_hits = None

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        picked, weights = self.router(flat)
        self.last_hits = torch.bincount(picked.flatten(), minlength=len(self.experts))
        out = torch.zeros_like(flat, dtype=torch.float32)
        for number, expert in enumerate(self.experts):
            rows, slots = (picked == number).nonzero(as_tuple=True)
            if rows.numel():
                out.index_add_(0, rows, expert(flat[rows]).float() * weights[rows, slots, None])
        return out.view_as(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.moe = MoE(DIM, 2 * DIM, EXPERTS, TOP_K)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.norm(x + self.moe(x)))


def make_chain():
    """Return the transitions of a Markov chain with Zipf-like tokens."""
    rank = torch.arange(1, VOCAB + 1).float()
    return torch.softmax(2.0 * torch.randn(VOCAB, VOCAB) - 1.1 * rank.log(), dim=-1)


def sample(chain):
    tokens = [torch.randint(0, VOCAB, (BATCH,))]
    for _ in range(LENGTH - 1):
        tokens.append(torch.multinomial(chain[tokens[-1]], 1).squeeze(1))
    return torch.stack(tokens, dim=1).to(device)


def main():
    chain = make_chain()
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    recent = torch.zeros(EXPERTS)
    for step in range(STEPS):
        tokens = sample(chain)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step >= STEPS - 20:
            recent += model.moe.last_hits.cpu()
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.4f}")
    load = model.moe.router.load.float().cpu()
    print("load", " ".join(f"{one:.4f}" for one in load))
    print(f"loss {loss.item():.4f} imbalance {recent.max() / recent.mean():.3f} spread of load {load.std():.6f}")


if __name__ == "__main__":
    main()
