import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TextCNN(nn.Module):
    def __init__(self, vocab=300, d=32, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(d, 24, k) for k in (2, 3, 4)])
        self.fc = nn.Linear(72, classes)

    def forward(self, x):
        e = self.embedding(x).transpose(1, 2)
        return self.fc(torch.cat([F.relu(c(e)).amax(-1) for c in self.convs], 1))


def sample(n):
    y = torch.randint(0, 3, (n,))
    x = torch.randint(1, 300, (n, 20))
    x[torch.arange(n), torch.randint(0, 15, (n,))] = 10 + y
    x[:, 16:] = 0
    return x.to(device), y.to(device)


model = TextCNN().to(device).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # default eps
for epoch in range(3):
    for it in range(15):
        x, y = sample(32)
        loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bad = sum((~torch.isfinite(p)).sum().item() for p in model.parameters())
    print(f"epoch {epoch} loss {loss.item():.4f} non-finite weights {bad}")
