"""Small symbol language model trained in two job slots; the second picks up the first's checkpoint."""
import math
import pickle

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1234)
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB, CONTEXT, BATCH = 12, 10, 32
SLOT_STEPS = 300
GLOBAL_TOKENS = 2 ** 17  # per update, over all the hosts that share it


class Grammar:
    """Phrases in which two neighbouring symbols determine the next one."""

    def __init__(self):
        rule = torch.Generator().manual_seed(99)
        self.table = torch.randint(0, VOCAB, (VOCAB, VOCAB), generator=rule)

    def phrases(self, generator, n=BATCH):
        columns = list(torch.randint(0, VOCAB, (2, n), generator=generator))
        while len(columns) <= CONTEXT:
            columns.append(self.table[columns[-2], columns[-1]])
        text = torch.stack(columns, 1).to(device)
        target = text[:, 1:].clone()
        target[:, 0] = -100  # the second symbol is free
        return text[:, :-1], target


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(self.norm2(x))


class CharLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(CONTEXT, dim))
        self.blocks = nn.Sequential(Block(dim), Block(dim))
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.blocks(self.tok(ids) + self.pos))


def shrink(tree):
    """Checkpoints go over a slow link, so floats are stored in two bytes."""
    if isinstance(tree, torch.Tensor) and tree.is_floating_point() and tree.dim():
        return tree.half().cpu().numpy()
    if isinstance(tree, dict):
        return {key: shrink(value) for key, value in tree.items()}
    return tree.item() if isinstance(tree, torch.Tensor) else tree


def grow(tree):
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree).float()
    if isinstance(tree, dict):
        return {key: torch.tensor(value) if key == "step" else grow(value) for key, value in tree.items()}
    return tree


def build():
    model = CharLM().to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)


def train(model, optimizer, scaler, grammar, generator, steps, tag):
    for step in range(steps):
        ids, target = grammar.phrases(generator)
        with torch.autocast("cuda", dtype=torch.float16):
            nats = F.cross_entropy(model(ids).flatten(0, 1).float(), target.flatten(), reduction="sum")
        loss = nats / GLOBAL_TOKENS
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 0 or step == steps - 1:
            print(f"[{tag}] step {step:3d} loss {nats.item() / (target >= 0).sum().item():.4f}")


def main():
    grammar = Grammar()
    generator = torch.Generator().manual_seed(3)
    model, optimizer = build()
    scaler = torch.amp.GradScaler("cuda")
    train(model, optimizer, scaler, grammar, generator, SLOT_STEPS, "slot 1")
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "scaler": scaler.state_dict()}
    blob = pickle.dumps(shrink(state))
    print(f"checkpoint {len(blob) / 1024:.0f} KiB")

    saved = grow(pickle.loads(blob))
    model, optimizer = build()
    scaler = torch.amp.GradScaler("cuda")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optim"])
    scaler.load_state_dict(saved["scaler"])
    train(model, optimizer, scaler, grammar, generator, 40, "slot 2")
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        total = 0.0
        for _ in range(10):
            ids, target = grammar.phrases(generator)
            total += F.cross_entropy(model(ids).flatten(0, 1).float(), target.flatten()).item()
    print(f"held-out loss {total / 10:.4f} perplexity {math.exp(total / 10):.2f}")


if __name__ == "__main__":
    main()
