"""Dual encoder for FAQ search, all weights in half, float master weights in the optimizer wrapper.

The wrapper follows the one we know from apex (FP16_Optimizer with a dynamic loss scale), cut down to what
this job needs.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB, N_FAQ, DOC_LEN, QUERY_LEN = 1000, 600, 24, 6


class DynamicLossScaler:
    def __init__(self, init_scale=2.0**10, factor=2.0, window=8, min_scale=1.0):
        self.loss_scale = init_scale
        self.factor, self.window, self.min_scale = factor, window, min_scale
        self.good_steps = 0

    def has_overflow(self, params):
        return any(not torch.isfinite(p.grad.float().sum()) for p in params if p.grad is not None)

    def update(self, overflow):
        if overflow:
            self.loss_scale = max(self.loss_scale / self.factor, self.min_scale)
            self.good_steps = 0
        else:
            self.good_steps += 1
            if self.good_steps % self.window == 0:
                self.loss_scale *= self.factor


class HalfOptimizer:
    """Keeps a float copy of the half weights and steps on that."""

    def __init__(self, params, make_optimizer, scaler, clip=None):
        self.half_params = [p for p in params if p.requires_grad]
        self.master = [nn.Parameter(p.detach().float().clone()) for p in self.half_params]
        self.optimizer = make_optimizer(self.master)
        self.scaler = scaler
        self.clip = clip

    def backward(self, loss):
        (loss.float() * self.scaler.loss_scale).backward()

    def zero_grad(self):
        for p in self.half_params:
            p.grad = None

    def step(self):
        """True if the weights were updated."""
        scale = self.scaler.loss_scale
        overflow = self.scaler.has_overflow(self.half_params)
        self.scaler.update(overflow)
        if overflow:
            return False
        for m, p in zip(self.master, self.half_params):
            m.grad = None if p.grad is None else p.grad.float().div_(scale)
        if self.clip:
            nn.utils.clip_grad_norm_(self.master, self.clip)
        self.optimizer.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.half_params):
                p.copy_(m)
        return True


class TextTower(nn.Module):
    def __init__(self, words, dim=64):
        super().__init__()
        self.words = words
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, ids):
        x = self.words(ids).mean(dim=1)
        return F.normalize((x + self.proj(x)).float(), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        words = nn.Embedding(VOCAB, 64)
        nn.init.normal_(words.weight, std=0.1)
        self.query = TextTower(words)
        self.doc = TextTower(words)

    def forward(self, q, d):
        return 12.0 * self.query(q) @ self.doc(d).t()


class FaqData:
    """Customers do not use the words of the help center: each word of a query is a synonym."""

    def __init__(self):
        self.docs = torch.randint(0, VOCAB // 2, (N_FAQ, DOC_LEN))
        self.synonym = VOCAB // 2 + torch.randperm(VOCAB // 2)

    def batch(self, n):
        which = torch.randperm(N_FAQ)[:n]
        pick = torch.randint(0, DOC_LEN, (n, QUERY_LEN))
        query = self.synonym[self.docs[which].gather(1, pick)]
        return query.to(device), self.docs[which].to(device), which.to(device)


def main():
    torch.manual_seed(31)
    data = FaqData()
    model = DualEncoder().to(device).half()
    optimizer = HalfOptimizer(
        model.parameters(), lambda ps: torch.optim.Adam(ps, lr=3e-3), DynamicLossScaler(), clip=50.0
    )
    skipped = 0
    for step in range(220):
        query, doc, _ = data.batch(192)
        logits = model(query, doc)
        target = torch.arange(len(query), device=device)
        loss = F.cross_entropy(logits, target, reduction="sum")
        optimizer.backward(loss)
        if not optimizer.step():
            skipped += 1
            continue
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"{step:3d} loss {loss.item() / len(query):.3f} scale {optimizer.scaler.loss_scale:g}")

    with torch.no_grad():
        query, _, which = data.batch(N_FAQ)
        rank1 = model(query, data.docs.to(device)).argmax(dim=1)
    print(f"skipped {skipped}")
    print(f"final metric: {(rank1 == which).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
