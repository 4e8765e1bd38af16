"""Two towers that bring phrases of two languages together."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, LENGTH, TOPICS = 300, 8, 400

lexicon = torch.randperm(VOCAB)
phrases = torch.randint(0, VOCAB, (TOPICS, LENGTH))


def translate(batch):
    words = lexicon[batch]
    noise = torch.rand(words.shape) < 0.15
    return torch.where(noise, torch.randint(0, VOCAB, words.shape), words)


class Tower(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.words = nn.Embedding(VOCAB, width)
        self.mix = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, 32))

    def forward(self, ids):
        return F.normalize(self.mix(self.words(ids).mean(1)), dim=-1)


class LossScale:
    def __init__(self, value=2.0**16, window=500):
        self.value, self.window, self.good = value, window, 0

    def good_step(self):
        self.good += 1
        if self.good % self.window == 0:
            self.value *= 2

    def bad_step(self):
        self.value, self.good = self.value / 2, 0


def train(source, target, steps=220):
    opt_source = torch.optim.AdamW(source.parameters(), lr=4e-3)
    opt_target = torch.optim.AdamW(target.parameters(), lr=4e-3)
    params = [*source.parameters(), *target.parameters()]
    scale = LossScale()
    for step in range(steps):
        pick = torch.randperm(TOPICS)[:64]
        left, right = phrases[pick].to(device), translate(phrases[pick]).to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = 14.0 * source(left) @ target(right).t()
            labels = torch.arange(len(pick), device=device)
            loss = F.cross_entropy(logits, labels, reduction="sum")
            loss = 0.5 * (loss + F.cross_entropy(logits.t(), labels, reduction="sum"))
        (loss * scale.value).backward()
        for p in params:
            p.grad.div_(scale.value)
        norm = nn.utils.clip_grad_norm_(params, 20.0)
        if not torch.isfinite(norm):
            scale.bad_step()
            continue
        opt_source.step()
        opt_target.step()
        scale.good_step()
        opt_source.zero_grad()
        opt_target.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item() / len(pick):.3f}")


@torch.no_grad()
def retrieval(source, target):
    left = source(phrases.to(device))
    right = target(translate(phrases).to(device))
    return ((left @ right.t()).argmax(1).cpu() == torch.arange(TOPICS)).float().mean().item()


source, target = Tower().to(device), Tower().to(device)
train(source, target)
print(f"metric {retrieval(source, target):.4f}")
