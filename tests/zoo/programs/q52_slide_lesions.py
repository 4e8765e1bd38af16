"""Lesions of four kinds in tissue slides: labels per slide, noisy-or over its patches."""
import torch
import torch.nn as nn

PATCHES, FEATURES, STEPS = 96, 24, 260
KINDS = ["inflammation", "necrosis", "mitosis", "micrometastasis"]
SLIDES = torch.tensor([0.45, 0.35, 0.40, 0.20])  # share of slides with it
COUNT = torch.tensor([16, 8, 6, 3])  # its patches in such a slide
PATCH_PRIOR = torch.tensor([2e-2, 8e-3, 5e-3, 1e-4])  # of a cohort of the hospital
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)

SIGNATURE = 1.3 * torch.randn(len(KINDS), FEATURES)


def slides(count):
    """Patch features of a few slides and which kinds of lesion they have."""
    present = (torch.rand(count, len(KINDS)) < SLIDES).float()
    patches = torch.randn(count, PATCHES, FEATURES)
    for kind in range(len(KINDS)):
        where = torch.rand(count, PATCHES).argsort(1)[:, : COUNT[kind]]
        patches.scatter_add_(
            1,
            where[:, :, None].expand(-1, -1, FEATURES),
            (present[:, kind, None, None] * SIGNATURE[kind]).expand(-1, where.shape[1], -1).contiguous(),
        )
    return patches.to(device), present.to(device)


class NoisyOr(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.instance = nn.Linear(48, len(KINDS))
        nn.init.normal_(self.instance.weight, std=0.02)
        with torch.no_grad():
            self.instance.bias.copy_(torch.logit(PATCH_PRIOR))

    def forward(self, patches):
        logits = self.instance(self.body(patches))
        absent = 1.0 - torch.sigmoid(logits)
        return 1.0 - absent.prod(dim=1)


def likelihood(probability, present):
    """Binary cross-entropy of slides, per kind."""
    probability = probability.clamp(1e-6, 1 - 1e-6)
    return -(present * probability.log() + (1 - present) * (1 - probability).log()).mean(0)


model = NoisyOr().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-3, weight_decay=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
for step in range(STEPS):
    patches, present = slides(16)
    with torch.autocast("cuda", dtype=torch.float16):
        terms = likelihood(model(patches), present)
        loss = terms.sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step:4d}  loss {loss.item():.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    found, truth = [], []
    for _ in range(12):
        patches, present = slides(50)
        found.append(model(patches) > 0.5)
        truth.append(present.bool())
found, truth = torch.cat(found), torch.cat(truth)
recall = (found & truth).sum(0) / truth.sum(0)
specificity = (~found & ~truth).sum(0) / (~truth).sum(0)
print(f"METRIC {((recall + specificity) / 2).mean().item():.4f}")
