"""Two credit models learn together, each from the labels and from the other's opinion."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(37)

CATEGORIES, NUMBERS, GRADES = 50, 8, 5
effect = torch.randn(CATEGORIES, GRADES, device=device)
load = torch.randn(NUMBERS, GRADES, device=device)


def applicants(n):
    kind = torch.randint(0, CATEGORIES, (n,), device=device)
    x = torch.randn(n, NUMBERS, device=device)
    score = effect[kind] + x @ load + 0.3 * torch.randn(n, GRADES, device=device)
    return kind, x, score.argmax(1)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(CATEGORIES, GRADES)
        self.numbers = nn.Linear(NUMBERS, GRADES)

    def forward(self, kind, x):
        return self.kind(kind) + self.numbers(x)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(CATEGORIES, 16)
        self.net = nn.Sequential(nn.Linear(16 + NUMBERS, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, GRADES))

    def forward(self, kind, x):
        return self.net(torch.cat([self.kind(kind), x], 1))


def opinion(student, teacher, warmth=4.0):
    teacher = F.log_softmax(teacher.detach() / warmth, dim=1)
    student = F.log_softmax(student / warmth, dim=1)
    return F.kl_div(student, teacher, log_target=True, reduction="batchmean") * warmth**2


kind, x, y = applicants(8000)
wide, deep = Wide().to(device), Deep().to(device)
wide_opt = torch.optim.Adam(wide.parameters(), lr=1e-2)
deep_opt = torch.optim.AdamW(deep.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=200)
for step in range(300):
    index = torch.randint(0, len(x), (256,), device=device)
    wide_opt.zero_grad(set_to_none=True)
    deep_opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        a, b = wide(kind[index], x[index]), deep(kind[index], x[index])
        wide_loss = F.cross_entropy(a, y[index]) + 0.5 * opinion(a, b)
        deep_loss = F.cross_entropy(b, y[index]) + 0.5 * opinion(b, a)
    scaler.scale(wide_loss).backward()
    scaler.scale(deep_loss).backward()
    for optimizer, model in ((wide_opt, wide), (deep_opt, deep)):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} wide {wide_loss.item():.3f} deep {deep_loss.item():.3f} scale {scaler.get_scale():.0f}")

kind, x, y = applicants(6000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    mean = (wide(kind, x).float().softmax(1) + deep(kind, x).float().softmax(1)) / 2
print(f"RESULT {(mean.argmax(1) == y).float().mean().item():.4f}")
