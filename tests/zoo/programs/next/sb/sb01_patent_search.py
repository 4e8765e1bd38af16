"""Dense retrieval for patent claims: query and document towers, in-batch negatives, fused contrastive loss."""
import torch
from torch import nn

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
TOPICS, WORDS, DIM, BATCH, STEPS = 400, 300, 64, 128, 150
TEMPERATURE = 0.05

# each patent has a latent topic; claims and abstracts are two noisy bags of words of it
topic_to_words = torch.randn(32, WORDS) / 32 ** 0.5
patents = torch.randn(TOPICS * 5, 32)


def bags(index):
    latent = patents[index]
    query = latent @ topic_to_words + 1.0 * torch.randn(len(index), WORDS)
    doc = latent @ topic_to_words + 1.0 * torch.randn(len(index), WORDS)
    return query.relu().to(device), doc.relu().to(device)


class FusedContrastive(torch.autograd.Function):
    """Mean InfoNCE over the rows; keeps only the logits and rebuilds the probabilities in the backward."""

    @staticmethod
    def forward(ctx, logits):
        ctx.save_for_backward(logits)
        lse = torch.logsumexp(logits.float(), dim=1)
        return (lse - logits.float().diagonal()).mean()

    @staticmethod
    def backward(ctx, grad_out):
        (logits,) = ctx.saved_tensors
        weights = logits.exp()
        probs = weights / weights.sum(dim=1, keepdim=True)
        probs = probs - torch.eye(len(probs), device=probs.device, dtype=probs.dtype)
        return (grad_out * probs / len(probs)).to(logits.dtype)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WORDS, 128), nn.ReLU(), nn.Linear(128, DIM))

    def forward(self, bag):
        return nn.functional.normalize(self.net(bag), dim=-1)


query_tower, doc_tower = Tower().to(device), Tower().to(device)
params = [*query_tower.parameters(), *doc_tower.parameters()]
optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=1e-2)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    index = torch.randperm(len(patents))[:BATCH]
    query, doc = bags(index)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = query_tower(query).mm(doc_tower(doc).t()) / TEMPERATURE
        loss = FusedContrastive.apply(logits)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f}")

# recall@5 among 200 candidates
hits = []
with torch.no_grad():
    for _ in range(10):
        index = torch.randperm(len(patents))[:200]
        query, doc = bags(index)
        with torch.autocast("cuda", dtype=torch.float16):
            scores = query_tower(query).mm(doc_tower(doc).t())
        best = scores.topk(5, dim=1).indices
        hits.append((best == torch.arange(200, device=device)[:, None]).any(1).float().mean().item())
print(f"metric {sum(hits) / len(hits):.4f}")
