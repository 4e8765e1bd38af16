"""Duplicate-question search: a metric-learning encoder with a cross-batch memory of past embeddings."""
import math

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(29)

N_QUESTIONS, WORDS, LENGTH = 400, 600, 16
DIM, BATCH, BANK, STEPS, TAU = 24, 64, 512, 160, 0.1


class Paraphrases:
    """Each question has its own word distribution; two draws from it are duplicates of each other."""

    def __init__(self):
        theme = torch.randn(40, WORDS)
        own = torch.randn(N_QUESTIONS, WORDS)
        self.p = torch.softmax(1.2 * theme[torch.randint(0, 40, (N_QUESTIONS,))] + 1.8 * own, dim=1)

    def ask(self, question):
        return torch.multinomial(self.p[question], LENGTH, replacement=True).to(device)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, DIM)
        self.proj = nn.Sequential(nn.Linear(DIM, 48), nn.ReLU(), nn.Linear(48, DIM))

    def forward(self, words):
        x = self.words(words).mean(1)
        return F.normalize((x + self.proj(x)).float(), dim=-1)


class MemoryBank:
    """A ring of the last embeddings and of the questions that they belong to."""

    def __init__(self, size, dim):
        self.vectors = torch.zeros(size, dim, dtype=torch.float16, device=device)
        self.owner = torch.full((size,), -1, device=device)
        self.head = 0

    @torch.no_grad()
    def push(self, vectors, owner):
        slots = (torch.arange(len(owner), device=device) + self.head) % len(self.owner)
        self.vectors[slots] = vectors.to(self.vectors.dtype)
        self.owner[slots] = owner
        self.head = int((self.head + len(owner)) % len(self.owner))


class RunningStats:
    """Averages of how similar duplicates and others are, for the log and the margin."""

    def __init__(self, momentum=0.9):
        self.momentum = momentum
        self.value = torch.tensor([0.5, 0.0], dtype=torch.float16, device=device)

    def update(self, duplicate, other):
        new = torch.stack([duplicate.detach(), other.detach()]).to(self.value.dtype)
        self.value.mul_(self.momentum).add_((1 - self.momentum) * new)


data = Paraphrases()
encoder = Encoder().to(device)
optimizer = torch.optim.AdamW(encoder.parameters(), lr=5e-3, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
bank, stats = MemoryBank(BANK, DIM), RunningStats()


@torch.no_grad()
def recall_at_1():
    encoder.eval()
    every = torch.arange(N_QUESTIONS)
    with torch.autocast("cuda", dtype=torch.float16):
        index = F.normalize(sum(encoder(data.ask(every)) for _ in range(2)), dim=-1).half()
        found = (encoder(data.ask(every)).half() @ index.t()).argmax(dim=1)
    encoder.train()
    return (found.cpu() == every).float().mean().item()


for step in range(STEPS):
    question = torch.randperm(N_QUESTIONS)[:BATCH]
    owner = question.to(device)
    for group in optimizer.param_groups:
        group["lr"] = 5e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS))

    with torch.autocast("cuda", dtype=torch.float16):
        anchor, positive = encoder(data.ask(question)), encoder(data.ask(question))
        keys = torch.cat([positive.to(bank.vectors.dtype), bank.vectors])
        similarity = anchor @ keys.t()
        labels = torch.cat([owner, bank.owner])
        duplicate = labels[None, :] == owner[:, None]
        duplicate[:, :BATCH] = False  # the own positive is the target
        logits = similarity.float() / TAU
        logits = logits.masked_fill(duplicate | (labels < 0)[None, :], -1e4)
        loss = F.cross_entropy(logits, torch.arange(BATCH, device=device))

    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(encoder.parameters(), 2.0)
    scaler.step(optimizer)
    scaler.update()
    bank.push(positive, owner)
    stats.update(similarity.diagonal().mean(), similarity[:, BATCH:].mean())

    if step % 60 == 59:
        same, other = stats.value.tolist()
        print(f"step {step + 1} loss {loss.item():.4f} duplicates {same:.3f} others {other:.3f} r@1 {recall_at_1():.4f}")

print(f"final metric: {sum(recall_at_1() for _ in range(4)) / 4:.4f}")
