"""Next-basket prediction: from the last purchases to a yes/no for every product of the range.

The (users, products) logits dominate the memory of the training job, so projection and loss are one
autograd Function that works through the users in chunks and keeps nothing but the gradients of its inputs.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"

PRODUCTS, DIM, HISTORY = 1200, 48, 12
BATCH = 512
STEPS = 100


class FusedLinearBCE(torch.autograd.Function):
    """mean BCE(h W^T + b, y) over users and products; y comes as padded lists of product ids.

    The loss is a scalar, so forward can compute the gradients as well and backward only multiplies them
    by whatever comes from above.
    """

    CHUNK = 256

    @staticmethod
    def forward(ctx, hidden, weight, bias, positives):
        users, products = hidden.shape[0], weight.shape[0]
        n = users * products
        w = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        total = 0.0
        for lo in range(0, users, FusedLinearBCE.CHUNK):
            h = hidden[lo:lo + FusedLinearBCE.CHUNK]
            logits = (h @ w.t()).float() + bias
            y = torch.zeros_like(logits).scatter_(1, positives[lo:lo + FusedLinearBCE.CHUNK], 1.0)
            total = total + F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
            d_logits = ((logits.sigmoid() - y) / n).to(hidden.dtype)
            grad_hidden[lo:lo + FusedLinearBCE.CHUNK] = d_logits @ w
            grad_weight += (d_logits.t() @ h).float()
            grad_bias += d_logits.sum(0, dtype=torch.float32)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total / n

    @staticmethod
    def backward(ctx, grad_output):
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        to_hidden = (grad_hidden.float() * grad_output).to(grad_hidden.dtype)
        return to_hidden, grad_weight * grad_output, grad_bias * grad_output, None


class Shop:
    """Households buy from a handful of departments."""

    def __init__(self, departments=20, kinds=40):
        self.department = torch.randint(0, departments, (PRODUCTS,))
        self.liking = torch.softmax(2.0 * torch.randn(kinds, departments), dim=1)
        popularity = torch.rand(PRODUCTS) ** 3 + 0.02
        p = self.liking[:, self.department] * popularity
        self.p = p / p.sum(1, keepdim=True)

    def visits(self, n, basket=6):
        kind = torch.randint(0, len(self.p), (n,))
        history = torch.multinomial(self.p[kind], HISTORY)
        return history.to(device), torch.multinomial(self.p[kind], basket).to(device)


class BasketModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(PRODUCTS, DIM, mode="mean")
        self.trunk = nn.Sequential(nn.Linear(DIM, 128), nn.GELU(), nn.Linear(128, DIM))
        self.out_weight = nn.Parameter(torch.randn(PRODUCTS, DIM) * 0.05)
        self.out_bias = nn.Parameter(torch.full((PRODUCTS,), -4.0))

    def encode(self, history):
        return checkpoint(self.trunk, self.embed(history), use_reentrant=False)

    def loss(self, history, basket):
        return FusedLinearBCE.apply(self.encode(history), self.out_weight, self.out_bias, basket)

    def forward(self, history):
        return self.encode(history) @ self.out_weight.t() + self.out_bias


torch.manual_seed(13)
shop = Shop()
model = BasketModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-12)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    history, basket = shop.visits(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model.loss(history, basket)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(f"step {step:3d} | loss per user {loss.item() * PRODUCTS:.3f}")

nll = 0.0
with torch.no_grad():
    for _ in range(4):
        history, basket = shop.visits(1000)
        bought = torch.zeros(1000, PRODUCTS, device=device).scatter_(1, basket, 1.0)
        nll += F.binary_cross_entropy_with_logits(model(history), bought).item() * PRODUCTS / 4
print(f"final metric: {nll:.4f}")
