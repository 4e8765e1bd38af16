"""Protein contacts from a family's sequences: a Potts model by pseudo-likelihood, couplings ranked by corrected norms."""

import torch
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, KINDS = 24, 8
first, second = torch.triu_indices(LENGTH, LENGTH, 3)

# The protein: pairs in contact, each with its own preferences, and what each position prefers.
contact = torch.zeros(LENGTH, LENGTH)
chosen = torch.randperm(len(first))[:26]
contact[first[chosen], second[chosen]] = 1
coupling = 1.1 * torch.randn(LENGTH, LENGTH, KINDS, KINDS) * contact[:, :, None, None]
coupling = coupling + coupling.permute(1, 0, 3, 2)
field = 0.5 * torch.randn(LENGTH, KINDS)


def evolve(sequences, sweeps, sites=LENGTH):
    """Gibbs sampling at some sites in a random order."""
    for _ in range(sweeps):
        for i in torch.randperm(LENGTH)[:sites].tolist():
            energy = field[i].repeat(len(sequences), 1)
            for j in contact[i].add(contact[:, i]).nonzero()[:, 0].tolist():
                energy += coupling[i, j][:, sequences[:, j]].T
            sequences[:, i] = torch.multinomial(energy.softmax(1), 1)[:, 0]
    return sequences


# Few lineages, each sequenced many times, as databases are.
lineages = evolve(torch.randint(KINDS, (700, LENGTH)), 20)
sizes = torch.distributions.Pareto(12.0, 1.1).sample((700,)).clamp(max=120).long()
shuffle = torch.randperm(int(sizes.sum()))
family = lineages.repeat_interleave(sizes, 0)[shuffle]
family = torch.cat([evolve(part.clone(), 1, 2) for part in family.split(200)])
weight = (1.0 / sizes).repeat_interleave(sizes)[shuffle].to(device)  # of a sequence: one over its cluster
fresh = evolve(torch.randint(KINDS, (1500, LENGTH)), 20)

family, fresh = family.to(device), fresh.to(device)
print(f"{len(family)} sequences, effective {weight.sum().item():.0f}")


class Potts(nn.Module):
    def __init__(self):
        super().__init__()
        self.couple = nn.Linear(LENGTH * KINDS, LENGTH * KINDS)
        nn.init.zeros_(self.couple.weight)
        nn.init.zeros_(self.couple.bias)
        off = 1 - torch.eye(LENGTH)
        self.register_buffer("off", off.repeat_interleave(KINDS, 0).repeat_interleave(KINDS, 1))

    def forward(self, sequences):
        code = nn.functional.one_hot(sequences, KINDS).flatten(1).to(self.couple.weight.dtype)
        logits = nn.functional.linear(code, self.couple.weight * self.off, self.couple.bias)
        return logits.view(-1, LENGTH, KINDS)


def loss_of(model, sequences, weight, total):
    """The weighted negative log pseudo-likelihood of a site, as a share of all sequences."""
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(sequences)
        each = nn.functional.cross_entropy(logits.flatten(0, 1), sequences.flatten(), reduction="none")
        return (weight[:, None] * each.view(len(sequences), LENGTH)).sum() / (total * LENGTH)


model = Potts().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1.0)
STEPS = 70
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
for step in range(STEPS):
    pick = torch.randperm(len(family), device=device)[:1024]
    loss = loss_of(model, family[pick], weight[pick], len(family))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 20 == 0:
        print(f"{step:4d} loss {loss.item() * len(family) / weight[pick].sum().item():.4f}")

with torch.no_grad():
    truth = Potts().to(device)
    truth.couple.weight.copy_(coupling.permute(0, 2, 1, 3).reshape(LENGTH * KINDS, -1))
    truth.couple.bias.copy_(field.flatten())
    even = torch.ones(len(fresh), device=device)
    reached, floor = (loss_of(one, fresh, even, len(fresh)).item() for one in (model, truth))
    full = (model.couple.weight * model.off).view(LENGTH, KINDS, LENGTH, KINDS).permute(0, 2, 1, 3)
    full = (full + full.permute(1, 0, 3, 2)) / 2
    full = full - full.mean(2, keepdim=True) - full.mean(3, keepdim=True) + full.mean((2, 3), keepdim=True)
    norm = full.square().sum((2, 3)).sqrt()
    norm = (norm - norm.mean(0, keepdim=True) * norm.mean(1, keepdim=True) / norm.mean()).cpu()
    best = norm[first, second].topk(26).indices
print(f"precision of the contacts {contact[first[best], second[best]].mean().item():.3f}")
print(f"held out {reached:.4f} nats a site, the true model {floor:.4f}")
print("METRIC", round(reached - floor, 4))
