"""Sequence tagging with an auxiliary task that is only used while it agrees with the main one
(sign of the inner product of both gradients at the shared representation)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(33)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, TAGS, CHUNKS, LEN, BATCH = 300, 12, 36, 24, 64
WARMUP = 8
word_tag = torch.randint(0, TAGS, (VOCAB,))
word_alt = torch.randint(0, TAGS, (VOCAB,))


def sentences(n, keep_main=0.03):
    w = torch.randint(0, VOCAB, (n, LEN))
    prev = torch.cat([torch.zeros(n, 1, dtype=torch.long), word_tag[w[:, :-1]]], 1)
    tag = torch.where(prev % 3 == 0, word_alt[w], word_tag[w])
    chunk = 3 * tag + prev % 3
    observed = torch.rand(n, LEN) < keep_main
    return w.to(device), tag.to(device), chunk.to(device), observed.to(device)


class Tagger(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.conv = nn.Conv1d(dim, 80, 3, padding=1)
        self.shared = nn.Linear(80, 64)
        self.tag_head = nn.Linear(64, TAGS)
        self.chunk_head = nn.Linear(64, CHUNKS)

    def represent(self, w):
        h = self.embed(w).transpose(1, 2)
        h = F.relu(self.conv(h)).transpose(1, 2)
        return F.relu(self.shared(h))


model = Tagger().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler(device)
used = 0
w_val, tag_val, _, _ = sentences(128)

for step in range(1, 101):
    w, tag, chunk, observed = sentences(BATCH)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.float16):
        z = model.represent(w)
        per_token = F.cross_entropy(model.tag_head(z).flatten(0, 1), tag.flatten(), reduction="none")
        main = (per_token * observed.flatten()).mean()
        aux = F.cross_entropy(model.chunk_head(z).flatten(0, 1), chunk.flatten())
    g_main, = torch.autograd.grad(main, z, retain_graph=True)
    g_aux, = torch.autograd.grad(aux, z, retain_graph=True)
    agree = step <= WARMUP or (g_main * g_aux).sum() > 0
    loss = main + aux if agree else main
    used += int(agree)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        with torch.no_grad():
            acc = (model.tag_head(model.represent(w_val)).argmax(-1) == tag_val).float().mean().item()
        print(f"step {step:4d}  main {main.item():.3f}  aux {aux.item():.3f}  aux used {used}/{step}  tag acc {acc:.3f}")
