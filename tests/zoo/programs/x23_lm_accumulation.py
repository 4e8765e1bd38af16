# Small bigram-ish language model; micro-batches are accumulated, everything under half autocast.
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(43)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, D, ACCUM, TOKENS = 2500, 32, 16, 768


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, D)
        self.block = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))
        self.norm = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, VOCAB)

    def forward(self, ids):
        h = self.tok(ids)
        h = h + self.block(h)
        return self.lm_head(self.norm(h))


lm = TinyLM().to(device)
opt = torch.optim.AdamW(lm.parameters(), lr=2e-3, weight_decay=0.01)
step_of = torch.randint(1, 50, (VOCAB,))
for update in range(4):
    opt.zero_grad()
    total = 0.0
    for micro in range(ACCUM):
        x = torch.randint(VOCAB, (TOKENS,))
        y = (x + step_of[x]) % VOCAB
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(lm(x.to(device)), y.to(device)) / ACCUM
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
    opt.step()
    print(f"update {update} loss {total:.4f}")
