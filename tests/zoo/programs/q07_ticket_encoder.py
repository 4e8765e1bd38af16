"""Card payments: is a ticket unusual for its merchant? Online mean ticket per merchant as a feature."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)

N_MERCHANT, BATCH, STEPS = 24, 1024, 200

typical = torch.exp(torch.empty(N_MERCHANT).uniform_(3.0, 6.5))


def draw(n):
    merchant = torch.randint(0, N_MERCHANT, (n,))
    z = torch.randn(n)
    amount = typical[merchant] * torch.exp(0.5 * z)
    other = torch.randn(n, 4)
    y = torch.bernoulli(torch.sigmoid(2.5 * z - 1.0 + 0.4 * other[:, 0]))
    return merchant.to(device), amount.to(device), other.to(device), y.to(device)


class MeanTicket(nn.Module):
    """Mean amount per merchant, updated as the stream goes by."""

    def __init__(self, n_merchants):
        super().__init__()
        self.register_buffer("total", torch.zeros(n_merchants, dtype=torch.float16))
        self.register_buffer("count", torch.zeros(n_merchants, dtype=torch.long))

    @torch.no_grad()
    def update(self, merchant, amount):
        n = self.count.numel()
        self.total += torch.bincount(merchant, weights=amount, minlength=n).to(self.total.dtype)
        self.count += torch.bincount(merchant, minlength=n)

    def forward(self, merchant):
        mean = self.total.float() / self.count.clamp(min=1)
        return torch.log1p(mean).clamp(max=8.0)[merchant]


class UnusualTicket(nn.Module):
    def __init__(self):
        super().__init__()
        self.tickets = MeanTicket(N_MERCHANT)
        self.mlp = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, merchant, amount, other):
        log_amount = torch.log1p(amount)
        relative = log_amount - self.tickets(merchant)
        x = torch.cat([torch.stack([log_amount - 4.5, relative], dim=1), other], dim=1)
        return self.mlp(x).squeeze(1)


model = UnusualTicket().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(STEPS):
    merchant, amount, other, y = draw(BATCH)
    model.tickets.update(merchant, amount)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(merchant, amount, other)
        loss = F.binary_cross_entropy_with_logits(logits, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 40 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    merchant, amount, other, y = draw(8192)
    logits = model(merchant, amount, other)
    test = F.binary_cross_entropy_with_logits(logits, y)
    acc = ((logits > 0) == (y > 0.5)).float().mean()
print(f"held-out log loss {test.item():.4f}  accuracy {acc.item():.3f}")
