"""Turn a dense FFN into a mixture: shared FFN + small per-expert low-rank deltas, learned routing."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(17)
VOCAB, D, E, R, LEN = 64, 48, 4, 4, 24


class UpcycledFFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.shared = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.down = nn.Parameter(torch.randn(E, D, R) / D ** 0.5)
        self.up = nn.Parameter(torch.randn(E, R, D) * 1e-4)
        self.router = nn.Linear(D, E, bias=False)

    def forward(self, x):
        h = self.norm(x)
        delta = torch.einsum("btd,edr,erk->btek", h, self.down, self.up)
        experts = self.shared(h).unsqueeze(2) + delta
        gates = F.softmax(self.router(h), dim=-1)
        return x + torch.einsum("bte,btek->btk", gates, experts)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, D)
        self.mix = nn.Linear(2 * D, D)
        self.ffn = UpcycledFFN()
        self.out = nn.Linear(D, VOCAB)

    def forward(self, ids):
        e = self.tok(ids)
        prev = F.pad(e, (0, 0, 1, 0))[:, :-1]
        return self.out(self.ffn(self.mix(torch.cat([e, prev], -1))))


table = torch.randint(0, VOCAB, (VOCAB,))
def sample(n):
    ids = torch.randint(0, VOCAB, (n, 1))
    rows = [ids]
    for _ in range(LEN):
        nxt = table[rows[-1]]
        rows.append(torch.where(torch.rand(n, 1) < 0.1, torch.randint(0, VOCAB, (n, 1)), nxt))
    seq = torch.cat(rows, 1)
    return seq[:, :-1].to(device), seq[:, 1:].to(device)


model = LM().to(device)
deltas = [model.ffn.up, model.ffn.down]
rest = [p for p in model.parameters() if not any(p is q for q in deltas)]
opt = torch.optim.AdamW([{"params": rest, "lr": 1e-3}, {"params": deltas, "lr": 1e-6}])
for step in range(12):
    ids, tgt = sample(16)
    with torch.autocast(device.type, torch.bfloat16):
        loss = F.cross_entropy(model(ids).flatten(0, 1), tgt.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 4 == 3:
        g = model.ffn.router.weight.grad.norm().item()
        print(step, round(loss.item(), 4), f"{g:.2e}")
