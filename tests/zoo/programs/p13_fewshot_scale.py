"""Few-shot episodes with a cosine prototype classifier (5-way, 5-shot) on short synthetic waveforms."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WAY, SHOT, QUERY, LENGTH = 5, 5, 15, 64
EPISODES = 240


def make_classes(n, gen):
    """A class is a mixture of three sinusoids."""
    freq = torch.rand(n, 3, generator=gen) * 0.8 + 0.05
    amp = torch.rand(n, 3, generator=gen) + 0.3
    return freq, amp


def draw(freq, amp, k, gen):
    t = torch.arange(LENGTH).float()
    phase = torch.rand(freq.shape[0], k, 3, 1, generator=gen) * 2 * math.pi
    wave = amp[:, None, :, None] * torch.sin(freq[:, None, :, None] * t + phase)
    noise = 0.4 * torch.randn(freq.shape[0], k, LENGTH, generator=gen)
    return wave.sum(2) + noise


def episode(pool, gen):
    freq, amp = pool
    pick = torch.randperm(freq.shape[0], generator=gen)[:WAY]
    x = draw(freq[pick], amp[pick], SHOT + QUERY, gen)
    support, query = x[:, :SHOT], x[:, SHOT:]
    labels = torch.arange(WAY).repeat_interleave(QUERY)
    return support.reshape(-1, 1, LENGTH).to(device), query.reshape(-1, 1, LENGTH).to(device), labels.to(device)


class Encoder(nn.Module):
    def __init__(self, width=32, dim=64):
        super().__init__()
        self.c1 = nn.Conv1d(1, width, 9, padding=4)
        self.c2 = nn.Conv1d(width, width, 5, padding=2, stride=2)
        self.c3 = nn.Conv1d(width, dim, 5, padding=2, stride=2)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        h = F.relu(self.c1(x))
        h = F.relu(self.c2(h))
        h = F.relu(self.c3(h))
        return self.proj(h.mean(-1))


class CosineProto(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.log_scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, support, query):
        proto = self.encoder(support).view(WAY, SHOT, -1).mean(1)
        proto = F.normalize(proto, dim=-1)
        emb = F.normalize(self.encoder(query), dim=-1)
        return self.log_scale.exp() * (emb @ proto.t())


def run(model, batch):
    support, query, labels = batch
    logits = model(support.to(torch.bfloat16), query.to(torch.bfloat16))
    return F.cross_entropy(logits.float(), labels), (logits.argmax(1) == labels).float().mean()


def main():
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(1)
    train_pool, test_pool = make_classes(64, gen), make_classes(40, gen)
    model = CosineProto().to(device=device, dtype=torch.bfloat16)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    for ep in range(EPISODES):
        opt.zero_grad()
        loss, acc = run(model, episode(train_pool, gen))
        loss.backward()
        opt.step()
        if ep % 30 == 0:
            print(f"episode {ep:4d} loss {loss.item():.4f} acc {acc.item():.3f}")

    with torch.no_grad():
        eg = torch.Generator().manual_seed(99)
        res = [run(model, episode(test_pool, eg)) for _ in range(60)]
    print(f"test acc {sum(r[1].item() for r in res) / 60:.4f}")
    print(f"final test nll {sum(r[0].item() for r in res) / 60:.4f}")


if __name__ == "__main__":
    main()
