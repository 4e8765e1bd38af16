"""A language model with a gated linear memory for the topic of a long document."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, TOPICS, DIM = 64, 8, 48
device = "cuda" if torch.cuda.is_available() else "cpu"


class GatedMemory(nn.Module):
    """h[t] = a[t] * h[t-1] + (1 - a[t]) * v[t], with horizons spread over [shortest, longest] tokens."""

    def __init__(self, dim, shortest=1000, longest=8000):
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)
        horizon = torch.exp(torch.empty(dim).uniform_(math.log(shortest), math.log(longest)))
        with torch.no_grad():
            self.gate.weight.zero_()
            self.gate.bias.copy_(torch.log(horizon - 1))

    def forward(self, x):
        keep = torch.sigmoid(self.gate(x))
        write = (1 - keep) * self.value(x)
        state = torch.zeros_like(write[:, 0])
        states = []
        for t in range(x.shape[1]):
            state = keep[:, t] * state + write[:, t]
            states.append(state)
        states = torch.stack(states, dim=1)
        return self.out(self.norm(states)), states


class TopicLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.local = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.memory = GatedMemory(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        context, states = self.memory(x)
        return self.head(x + self.local(x) + context), states


class Documents:
    """Most words of a document come from its topic, the others follow on the word before."""

    def __init__(self):
        self.follow = torch.softmax(3 * torch.randn(VOCAB, VOCAB), dim=-1)
        self.topic = torch.softmax(4 * torch.randn(TOPICS, VOCAB), dim=-1)

    def batch(self, size=16, length=65):
        topic = torch.randint(0, TOPICS, (size,))
        words = [torch.randint(0, VOCAB, (size,))]
        for _ in range(length - 1):
            odds = 0.6 * self.topic[topic] + 0.4 * self.follow[words[-1]]
            words.append(torch.multinomial(odds, 1).squeeze(1))
        return torch.stack(words, dim=1).to(device)


def train(steps=60):
    torch.manual_seed(5)
    documents = Documents()
    model = TopicLM().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    running = None
    for step in range(steps):
        words = documents.batch()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, states = model(words[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} norm {total:.3f}")
    size = states[:, -1].float().pow(2).mean().sqrt()
    print(f"final loss {running:.4f} memory {size:.5f}")


if __name__ == "__main__":
    train()
