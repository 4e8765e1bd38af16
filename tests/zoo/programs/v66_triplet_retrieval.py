"""Embeddings for product retrieval, trained with batch-hard triplets."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MARGIN = 0.5


class Products:
    def __init__(self, products=60, dim=48, noise=0.9):
        self.gen = torch.Generator().manual_seed(3)
        self.base = torch.randn(products, dim, generator=self.gen)
        self.noise = noise

    def sample(self, classes=16, per_class=4):
        ids = torch.randperm(len(self.base), generator=self.gen)[:classes].repeat_interleave(per_class)
        views = self.base[ids] + self.noise * torch.randn(len(ids), self.base.shape[1], generator=self.gen)
        return views.to(DEVICE), ids.to(DEVICE)


class Encoder(nn.Module):
    def __init__(self, dim=48, width=96, out=32):
        super().__init__()
        self.fc1 = nn.Linear(dim, width)
        self.fc2 = nn.Linear(width, width)
        self.out = nn.Linear(width, out)

    def forward(self, x):
        x = F.gelu(self.fc1(x))
        x = F.gelu(self.fc2(x))
        return self.out(x)


def pairwise_distances(emb):
    """Euclidean distances of all pairs in a batch."""
    dot = emb @ emb.t()
    square = dot.diagonal()
    dist = square.unsqueeze(0) - 2.0 * dot + square.unsqueeze(1)
    dist = torch.maximum(dist, torch.zeros_like(dist))
    zero = dist.eq(0).to(dist.dtype)
    dist = (dist + zero * 1e-16).sqrt()
    return dist * (1.0 - zero)


def batch_hard(emb, labels, margin=MARGIN):
    dist = pairwise_distances(emb)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    eye = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    hardest_positive = (dist * (same & ~eye)).amax(1)
    furthest = dist.amax(1, keepdim=True).detach()
    hardest_negative = (dist + furthest * same).amin(1)
    return F.relu(hardest_positive - hardest_negative + margin).mean()


@torch.no_grad()
def recall_at_1(model, data):
    emb_gallery, ids_gallery = data.sample(60, 1)
    emb_query, ids_query = data.sample(60, 4)
    dist = torch.cdist(model(emb_query), model(emb_gallery))
    return (ids_gallery[dist.argmin(1)] == ids_query).float().mean().item()


def main():
    torch.manual_seed(0)
    data = Products()
    model = Encoder().to(DEVICE)
    start = model.out.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(60):
        x, y = data.sample()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = batch_hard(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    print(f"recall@1 {recall_at_1(model, data):.3f}")
    print(f"moved {(model.out.weight - start).norm().item():.4f}")


if __name__ == "__main__":
    main()
