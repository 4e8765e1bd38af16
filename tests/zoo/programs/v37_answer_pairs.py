"""Contrastive training of question-answer pairs with a queue of earlier answers as negatives."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, TOPICS, WORDS, DIM, BATCH, QUEUE, STEPS = 800, 60, 12, 64, 96, 960, 420

topics = (2.0 * torch.randn(TOPICS, VOCAB)).softmax(1)
asked = (2.0 * torch.randn(TOPICS, VOCAB) + topics.log()).softmax(1)


def pairs(n):
    """Bags of words of a question and its answer; each pair mixes three topics."""
    share = torch.distributions.Dirichlet(torch.full((3,), 1.5)).sample((n,))
    which = torch.randint(0, TOPICS, (n, 3))
    question = torch.multinomial((share[..., None] * asked[which]).sum(1), WORDS, replacement=True)
    answer = torch.multinomial((share[..., None] * topics[which]).sum(1), 2 * WORDS, replacement=True)
    return question.to(device), answer.to(device)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.first = nn.Linear(DIM, 128)
        self.second = nn.Linear(128, DIM)

    def forward(self, tokens):
        h = self.words(tokens).mean(1)
        return F.normalize(self.second(F.gelu(self.first(h))), dim=-1)


ask, reply, slow = Encoder().to(device), Encoder().to(device), Encoder().to(device)
slow.load_state_dict(reply.state_dict())
log_temperature = nn.Parameter(torch.tensor(2.6, device=device))
weights = [*ask.parameters(), *reply.parameters(), log_temperature]
optimizer = torch.optim.AdamW(weights, lr=3e-3, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=100)
queue = F.normalize(torch.randn(QUEUE, DIM, device=device), dim=1).to(torch.float16)
head = 0

for step in range(STEPS):
    question, answer = pairs(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        q, a = ask(question), reply(answer)
        with torch.no_grad():
            key = slow(answer)
        scale = log_temperature.exp().clamp(max=100)
        inside = scale * (q @ a.t())
        outside = scale * (q @ queue.t())
        label = torch.arange(BATCH, device=device)
        loss = F.cross_entropy(torch.cat([inside, outside], 1), label)
        loss = 0.5 * loss + 0.5 * F.cross_entropy(inside.t(), label)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(weights, 2.0)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for kept, new in zip(slow.parameters(), reply.parameters()):
            kept.lerp_(new, 0.02)
    queue[head : head + BATCH] = key.to(queue.dtype)
    head = (head + BATCH) % QUEUE
    if step % 70 == 0:
        print(f"step {step:4d} loss {loss.item():.3f} temperature {1 / scale.item():.4f} scale {scaler.get_scale():.0f}")

found = []
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for _ in range(6):
        question, answer = pairs(400)
        best = (ask(question) @ reply(answer).t()).argmax(1)
        found.append((best == torch.arange(400, device=device)).float())
print("answers found among 400, in per cent")
print(f"METRIC {100 * torch.cat(found).mean().item():.2f}")
