"""Speaker embeddings with an angular contrastive loss on short filterbank segments."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SPEAKERS, MELS, FRAMES, EMB = 24, 24, 40, 16


class AngularContrastive(nn.Module):
    """Geodesic distances between all pairs of a batch: same speaker together, others at least `margin` radians apart."""

    def __init__(self, margin=1.3, eps=1e-6):
        super().__init__()
        self.margin, self.eps = margin, eps

    def forward(self, emb, label):
        emb = F.normalize(emb)
        cosine = (emb @ emb.t()).clamp(-1 + self.eps, 1 - self.eps)
        theta = torch.acos(cosine)
        same = (label[:, None] == label[None]).float()
        other = 1 - same
        same = same - torch.eye(len(label), device=same.device)
        pull = (same * theta ** 2).sum() / same.sum().clamp(min=1)
        push = (other * (self.margin - theta).clamp(min=0) ** 2).sum() / other.sum()
        return pull + 4 * push, pull, push


class TDNN(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.frame = nn.Sequential(
            nn.Conv1d(MELS, width, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(width),
            nn.Conv1d(width, width, 3, dilation=2, padding=2), nn.ReLU(), nn.BatchNorm1d(width))
        self.fc = nn.Linear(2 * width, EMB)

    def forward(self, x):
        h = self.frame(x).float()
        stats = torch.cat([h.mean(-1), h.std(-1)], -1)
        return self.fc(stats)


class Corpus:
    """Speakers differ by spectral envelope and by how fast it is modulated."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.envelope = torch.randn(SPEAKERS, MELS, 1, generator=self.gen)
        self.rate = 0.1 + 0.5 * torch.rand(SPEAKERS, 1, 1, generator=self.gen)
        self.depth = torch.randn(SPEAKERS, MELS, 1, generator=self.gen) * 0.5

    def batch(self, n):
        who = torch.randint(0, SPEAKERS, (n,), generator=self.gen)
        t = torch.arange(FRAMES) + 100 * torch.rand(n, 1, 1, generator=self.gen)
        x = self.envelope[who] + self.depth[who] * torch.sin(self.rate[who] * t)
        return (x + 0.9 * torch.randn(n, MELS, FRAMES, generator=self.gen)).to(device), who.to(device)


def verification(model, corpus, n=300):
    """Same/different decisions on all pairs at the best threshold."""
    model.eval()
    x, who = corpus.batch(n)
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        e = F.normalize(model(x)).float()
    model.train()
    score, same = e @ e.T, who[:, None] == who[None]
    off = ~torch.eye(n, dtype=torch.bool, device=score.device)
    s, y = score[off], same[off]
    best = min(((s[y] < t).float().mean() + (s[~y] >= t).float().mean()).item() / 2 for t in torch.linspace(-0.5, 1, 61))
    return best


def train(steps=100, batch=48):
    torch.manual_seed(0)
    corpus = Corpus(5)
    model, criterion = TDNN().to(device), AngularContrastive()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    scaler = torch.amp.GradScaler(device)
    for step in range(steps):
        x, who = corpus.batch(batch)
        with torch.autocast(device, dtype=torch.float16):
            loss, pull, push = criterion(model(x), who)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        if step % 15 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}  pull {pull.item():.4f}  push {push.item():.4f}  scale {scaler.get_scale():.3g}")
    print(f"verification error {verification(model, corpus):.4f}")


if __name__ == "__main__":
    train()
