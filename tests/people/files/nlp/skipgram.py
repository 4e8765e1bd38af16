import collections
import random

import torch
import torch.nn as nn
import torch.optim as optim

corpus = """the quick brown fox jumps over the lazy dog the dog sleeps and the fox runs over the hill
a lazy dog and a quick fox live on the same hill where the brown hare also runs""".split()
vocab = [w for w, _ in collections.Counter(corpus).most_common()]
word2idx = {w: i for i, w in enumerate(vocab)}

EMBED = 24
WINDOW = 2
NEG = 5


class SkipGramModel(nn.Module):
    def __init__(self, vocab_size, embed_size):
        super(SkipGramModel, self).__init__()
        self.center = nn.Embedding(vocab_size, embed_size)
        self.context = nn.Embedding(vocab_size, embed_size)
        nn.init.uniform_(self.center.weight, -0.5 / embed_size, 0.5 / embed_size)
        nn.init.normal_(self.context.weight, std=0.1)

    def forward(self, center, pos, neg):
        c = self.center(center)
        pos_score = torch.sum(c * self.context(pos), dim=1)
        neg_score = torch.bmm(self.context(neg), c.unsqueeze(2)).squeeze(2)
        loss = nn.functional.logsigmoid(pos_score) + nn.functional.logsigmoid(-neg_score).sum(1)
        return -loss.mean()


def pairs():
    out = []
    for i, w in enumerate(corpus):
        for j in range(max(0, i - WINDOW), min(len(corpus), i + WINDOW + 1)):
            if i != j:
                out.append((word2idx[w], word2idx[corpus[j]]))
    return out


def main():
    data = pairs()
    model = SkipGramModel(len(vocab), EMBED)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        random.shuffle(data)
        total = 0
        for k in range(0, len(data), 16):
            chunk = data[k:k + 16]
            center = torch.tensor([c for c, _ in chunk])
            pos = torch.tensor([p for _, p in chunk])
            neg = torch.randint(0, len(vocab), (len(chunk), NEG))
            optimizer.zero_grad()
            loss = model(center, pos, neg)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print("Epoch", epoch, "Loss", total)


if __name__ == "__main__":
    main()
