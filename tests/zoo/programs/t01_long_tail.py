"""Long-tailed classification with logit adjustment from running class counts."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FREQ = torch.tensor([0.55, 0.25, 0.12, 0.05, 0.03])
CENTERS = 0.7 * torch.randn(5, 32)


class AdjustedHead(nn.Module):
    """Cosine-free linear head that adds the log of the observed class prior."""

    def __init__(self, dim, classes, dtype):
        super().__init__()
        self.fc = nn.Linear(dim, classes)
        self.register_buffer("counts", torch.ones(classes, dtype=dtype))

    def observe(self, y):
        ones = torch.ones(len(y), dtype=self.counts.dtype, device=y.device)
        self.counts.index_add_(0, y, ones)

    def forward(self, h):
        prior = self.counts.float() / self.counts.float().sum()
        return self.fc(h) + prior.log()


class Classifier(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = AdjustedHead(64, 5, dtype)

    def forward(self, x):
        return self.head(self.trunk(x))


AMP = torch.bfloat16
model = Classifier(AMP).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for step in range(36):
    y = torch.multinomial(FREQ, 512, replacement=True)
    x = CENTERS[y] + torch.randn(512, 32)
    x, y = x.to(device), y.to(device)
    model.head.observe(y)
    with torch.autocast(device.type, dtype=AMP):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 6 == 0:
        print(step, round(loss.item(), 4), model.head.counts.tolist())
