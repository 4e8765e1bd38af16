"""Next-symbol model on a synthetic grammar with an auxiliary phase loss; blocks are recomputed, batches accumulated."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"


class Grammar:
    """A hidden phase picks one of several transition tables; the phase changes rarely."""

    def __init__(self, symbols=20, phases=3, seed=19):
        g = torch.Generator().manual_seed(seed)
        self.symbols, self.phases = symbols, phases
        self.tables = torch.softmax(2.5 * torch.randn(phases, symbols, symbols, generator=g), 2)

    def write(self, n, length, gen):
        phase = torch.randint(0, self.phases, (n,), generator=gen)
        sym = torch.randint(0, self.symbols, (n,), generator=gen)
        text, phases = [], []
        for _ in range(length + 1):
            text.append(sym)
            phases.append(phase)
            jump = torch.rand(n, generator=gen) < 0.03
            phase = torch.where(jump, torch.randint(0, self.phases, (n,), generator=gen), phase)
            sym = torch.multinomial(self.tables[phase, sym], 1, generator=gen).squeeze(1)
        return torch.stack(text, 1).to(device), torch.stack(phases, 1).to(device)


class Block(nn.Module):
    def __init__(self, dim, heads, drop=0.1):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.drop = nn.Dropout(drop)

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        score = (q * (d // self.heads) ** -0.5) @ k.transpose(-2, -1)
        late = torch.ones(t, t, device=x.device, dtype=torch.bool).triu(1)
        weight = torch.softmax(score.masked_fill(late, -6e4), -1)
        return self.proj((weight.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = x + self.drop(self.attend(self.n1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.n2(x)))))


class SymbolModel(nn.Module):
    def __init__(self, grammar, length, dim=48, depth=4):
        super().__init__()
        self.token = nn.Embedding(grammar.symbols, dim)
        self.place = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.next, self.phase = nn.Linear(dim, grammar.symbols), nn.Linear(dim, grammar.phases)

    def forward(self, text):
        x = (self.token(text) + self.place[:text.shape[1]]).to(self.stream)
        for k, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=k % 2 == 0) if self.training else block(x)
        x = self.norm(x)
        return self.next(x), self.phase(x)

    stream = torch.float32


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    args = parser.parse_args()
    dtype = torch.float16
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(20)
    grammar = Grammar()
    train, held = grammar.write(4000, args.length, gen), grammar.write(400, args.length, gen)

    model = SymbolModel(grammar, args.length).to(device)
    model.stream = dtype
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    scaler = torch.amp.GradScaler(device)
    for step in range(args.steps):
        opt.zero_grad(set_to_none=True)
        for _ in range(args.accumulate):
            pick = torch.randint(0, len(train[0]), (args.batch,), device=device)
            text, phase = train[0][pick], train[1][pick]
            with torch.autocast(device, dtype=dtype):
                nxt, ph = model(text[:, :-1])
                main_loss = F.cross_entropy(nxt.flatten(0, 1), text[:, 1:].flatten())
                loss = (main_loss + 0.1 * F.cross_entropy(ph.flatten(0, 1), phase[:, :-1].flatten())) / args.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step:3d} loss {main_loss.item():.4f}")

    model.eval()
    with torch.no_grad(), torch.autocast(device, dtype=dtype):
        nxt, ph = (t.float() for t in model(held[0][:, :-1]))
    nll = F.cross_entropy(nxt.flatten(0, 1), held[0][:, 1:].flatten()).item()
    accuracy = (ph.argmax(-1) == held[1][:, :-1]).float().mean().item()
    print(f"held-out loss {nll:.4f} phase accuracy {accuracy:.4f}")
    return {"nll": nll, "phase": accuracy, "scale": scaler.get_scale(), "updates": int(opt.state[model.place]["step"]), "_model": model}


if __name__ == "__main__":
    main()
