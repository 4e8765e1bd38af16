"""Two-tower retrieval with in-batch softmax and popularity correction."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class InteractionLog:
    """Synthetic implicit feedback: users belong to tastes, items have a long tail."""

    def __init__(self, n_users, n_items, n_events, seed):
        g = torch.Generator().manual_seed(seed)
        pop = 1.0 / (torch.arange(n_items).float() + 3.0) ** 1.1
        user_f = torch.randn(n_users, 8, generator=g)
        item_f = torch.randn(n_items, 8, generator=g)
        pref = (0.45 * user_f @ item_f.t()).exp() * pop
        self.users = torch.randint(0, n_users, (n_events,), generator=g)
        probs = pref / pref.sum(1, keepdim=True)
        self.items = torch.empty(n_events, dtype=torch.long)
        for lo in range(0, n_events, 20000):
            u = self.users[lo:lo + 20000]
            self.items[lo:lo + 20000] = torch.multinomial(probs[u], 1, generator=g).squeeze(1)


class PopularityTable(nn.Module):
    """How often each item was seen; streamed from the log in small chunks."""

    def __init__(self, n_items, dtype):
        super().__init__()
        self.register_buffer("count", torch.ones(n_items, dtype=dtype))

    @torch.no_grad()
    def observe(self, items):
        seen, times = items.unique(return_counts=True)
        self.count[seen] += times.to(self.count.dtype)

    def log_q(self, items):
        c = self.count[items].float()
        return torch.log(c / self.count.float().sum())


class Tower(nn.Module):
    def __init__(self, n, dim, out):
        super().__init__()
        self.emb = nn.Embedding(n, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, idx):
        e = self.emb(idx)
        return self.mlp(e) + e


class Retriever(nn.Module):
    def __init__(self, n_users, n_items, dim, dtype):
        super().__init__()
        self.user = Tower(n_users, dim, dim)
        self.item = Tower(n_items, dim, dim)
        self.bias = nn.Embedding(n_items, 1)
        nn.init.zeros_(self.bias.weight)
        self.popularity = PopularityTable(n_items, dtype)

    def score(self, users, items):
        return self.user(users) @ self.item(items).t() / 4 + self.bias(items).t()

    def loss(self, users, items):
        logits = self.score(users, items) - self.popularity.log_q(items)
        same = items[None, :] == items[:, None]
        same.fill_diagonal_(False)
        logits = logits.masked_fill(same, float("-inf"))
        return F.cross_entropy(logits, torch.arange(len(items), device=items.device))


@torch.no_grad()
def recall(model, users, items, n_items, k, device, dtype):
    model.eval()
    with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
        s = model.score(users, torch.arange(n_items, device=device))
    model.train()
    top = s.float().topk(k, dim=1).indices
    return (top == items[:, None]).any(1).float().mean().item()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="bf16", choices=DTYPES)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=300)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = DTYPES[a.precision]
    n_users, n_items = 400, 600
    log = InteractionLog(n_users, n_items, 164000, seed=7)
    users, items = log.users.to(device), log.items.to(device)
    tr, te = slice(0, 160000), slice(160000, 164000)
    torch.manual_seed(a.seed)
    model = Retriever(n_users, n_items, 32, dtype).to(device)
    for chunk in items[tr].split(4):
        model.popularity.observe(chunk)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(a.seed + 1)
    for step in range(a.steps):
        idx = torch.randint(0, 160000, (512,), generator=g).to(device)
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss = model.loss(users[idx], items[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    r = recall(model, users[te], items[te], n_items, 5, device, dtype)
    print(f"recall@5 {r:.4f}")
    return {"recall5": r, "loss": loss.item(), "count_max": model.popularity.count.max().item()}


if __name__ == "__main__":
    main()
