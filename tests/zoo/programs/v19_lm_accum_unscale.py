# GRU-cell language model, gradient accumulation over documents, unscaling by hand, clipping.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
V, H, T, ACCUM, SCALE = 40, 64, 16, 8, 2.0 ** 10


class CellLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 32)
        self.wx = nn.Linear(32, 3 * H)
        self.wh = nn.Linear(H, 3 * H)
        self.out = nn.Linear(H, V)

    def forward(self, ids):
        h = torch.zeros(ids.shape[0], H, device=ids.device)
        xs = self.wx(self.emb(ids))
        ys = []
        for t in range(ids.shape[1]):
            r, z, n = (xs[:, t]).chunk(3, -1)
            hr, hz, hn = self.wh(h).chunk(3, -1)
            z = torch.sigmoid(z + hz)
            n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
            h = (1 - z) * n + z * h
            ys.append(h)
        return self.out(torch.stack(ys, 1))


gen = torch.Generator().manual_seed(3)
topics = torch.softmax(3.0 * torch.randn(ACCUM, V, V, generator=gen) + 2.0 * torch.randn(V, V, generator=gen), -1)


def document(topic, n=6):
    ids = torch.randint(0, V, (n, 1), generator=gen)
    for _ in range(T):
        ids = torch.cat([ids, torch.multinomial(topics[topic][ids[:, -1]], 1, generator=gen)], 1)
    return ids.to(device)


model = CellLM().to(device)
opt = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8)
for step in range(1, 61):
    opt.zero_grad()
    per_topic = []
    for k in range(ACCUM):
        ids = document(k)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        (loss * SCALE / ACCUM).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.grad.mul_(1.0 / SCALE)
        per_topic.append(loss.item())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if all(torch.isfinite(p.grad).all() for p in model.parameters()):
        opt.step()
    if step % 15 == 0:
        print(f"step {step} mean {sum(per_topic) / ACCUM:.3f} first topic {per_topic[0]:.3f} last topic {per_topic[-1]:.3f}")
