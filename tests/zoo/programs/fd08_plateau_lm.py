"""Character model with early stopping on held-out perplexity; the best weights are kept."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
device = "cuda" if torch.cuda.is_available() else "cpu"
CHARS, CONTEXT = 32, 4
chain = torch.softmax(2.0 * torch.randn(CHARS, CHARS), dim=-1)


def text(length):
    symbols = [0]
    noise = torch.rand(length)
    cumulative = chain.cumsum(-1)
    for i in range(length):
        symbols.append(min(int(torch.searchsorted(cumulative[symbols[-1]], noise[i])), CHARS - 1))
    return torch.tensor(symbols, device=device)


class CharModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(CHARS, width)
        self.body = nn.Sequential(nn.Linear(CONTEXT * width, 64), nn.GELU())
        self.out = nn.Linear(64, CHARS)

    def forward(self, context):
        return self.out(self.body(self.embed(context).flatten(1)))


def windows(symbols):
    return symbols.unfold(0, CONTEXT + 1, 1)


@torch.no_grad()
def validate(model, symbols, size=512):
    """Mean loss of a copy in BF16, as it will be served."""
    served = copy.deepcopy(model).to(torch.bfloat16).eval()
    total, count = None, 0
    for part in windows(symbols).split(size):
        loss = F.cross_entropy(served(part[:, :-1]), part[:, -1]) * len(part)
        total = loss if total is None else total + loss
        count += len(part)
    return total / count


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad = patience, 0
        self.best, self.weights = None, None

    def update(self, loss, model):
        if self.best is None or loss < self.best:
            self.best, self.bad = loss, 0
            self.weights = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


train, valid, test = text(12000), text(2500), text(4000)
model = CharModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
stopping = EarlyStopping(patience=3)
data = windows(train)

for step in range(1, 301):
    part = data[torch.randint(0, len(data), (128,), device=device)]
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(part[:, :-1]), part[:, -1])
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        held_out = validate(model, valid)
        if stopping.update(held_out, model):
            print(f"stopped at step {step}, best {stopping.best.item():.4f}")
            break

model.load_state_dict(stopping.weights)
with torch.no_grad():
    part = windows(test)
    print(f"metric {F.cross_entropy(model(part[:, :-1]), part[:, -1]).item():.4f}")
