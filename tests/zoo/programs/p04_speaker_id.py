"""Speaker identification: x-vector style TDNN with statistics pooling and an additive-margin softmax."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class TDNN(nn.Sequential):
    def __init__(self, cin, cout, width, dilation=1):
        super().__init__(nn.Conv1d(cin, cout, width, dilation=dilation, bias=False), nn.BatchNorm1d(cout), nn.ReLU())


class StatsPool(nn.Module):
    """Mean and standard deviation over time."""

    def __init__(self, eps=1e-8):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=2)
        var = (x - mean.unsqueeze(2)).square().mean(dim=2)
        return torch.cat([mean, torch.sqrt(var + self.eps)], dim=1)


class XVector(nn.Module):
    def __init__(self, mels, width=32, emb=32):
        super().__init__()
        self.frames = nn.Sequential(TDNN(mels, width, 5), TDNN(width, width, 3, 2), TDNN(width, 96, 1))
        self.pool = StatsPool()
        self.embedding = nn.Linear(192, emb)
        self.bn = nn.BatchNorm1d(emb)

    def forward(self, feats):
        return self.bn(self.embedding(self.pool(self.frames(feats))))


class MarginSoftmax(nn.Module):
    def __init__(self, emb, speakers, scale=15.0, margin=0.1):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(speakers, emb) * 0.1)
        self.scale, self.margin = scale, margin

    def forward(self, emb, label=None):
        cos = F.linear(F.normalize(emb.float()), F.normalize(self.weight))
        if label is None:
            return cos
        hit = F.one_hot(label, cos.shape[1])
        return F.cross_entropy(self.scale * (cos - self.margin * hit), label)


class VoiceSet:
    """Each speaker has a spectral envelope and a pitch-like modulation; utterances end in digital silence."""

    def __init__(self, speakers=30, mels=20, frames=60, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.envelope = torch.randn(speakers, mels, generator=g)
        self.rate = 0.2 + torch.rand(speakers, generator=g)
        self.frames, self.mels, self.g = frames, mels, g

    def sample(self, n):
        label = torch.randint(len(self.envelope), (n,), generator=self.g)
        t = torch.arange(self.frames, dtype=torch.float)
        phase = 6.28 * torch.rand(n, 1, generator=self.g)
        energy = 1 + 0.5 * torch.sin(self.rate[label][:, None] * t + phase)
        x = self.envelope[label][:, :, None] * energy[:, None]
        x = x + 0.7 * torch.randn(n, self.mels, self.frames, generator=self.g)
        length = torch.randint(self.frames // 2, self.frames, (n,), generator=self.g)
        x = x.masked_fill(t[None, None] >= length[:, None, None], -4.0)
        return x, label


def accuracy(model, head, data, device):
    model.eval()
    x, label = data.sample(200)
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        guess = head(model(x.to(device))).argmax(1).cpu()
    model.train()
    return (guess == label).float().mean().item()


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(2)
    train_set, test_set = VoiceSet(), VoiceSet()
    test_set.g.manual_seed(77)
    model = XVector(mels=20).to(device)
    head = MarginSoftmax(32, 30).to(device)
    params = list(model.parameters()) + list(head.parameters())
    optimizer = torch.optim.SGD(params, lr=0.03, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device)
    epochs, per_epoch = 6, 20
    for epoch in range(epochs):
        total = 0.0
        for _ in range(per_epoch):
            x, label = train_set.sample(24)
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = head(model(x.to(device)), label.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch}  loss {total / per_epoch:.4f}  accuracy {accuracy(model, head, test_set, device):.3f}")
