"""Keyword recognition from transcripts of many sources: how far each source is trusted is learned on clean clips."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, MELS, FRAMES, SOURCES, BATCH, STEPS = 10, 20, 12, 16, 128, 350
INNER_LR = 0.005

prototype = torch.randn(WORDS, FRAMES, MELS) * 0.28
careless = torch.randperm(SOURCES)[:10]
quality = torch.full((SOURCES,), 0.95)
quality[careless] = 0.25


def clips(n, clean=False):
    """Mel frames of spoken words; a careless source often writes the next word of the list."""
    y, source = torch.randint(WORDS, (n,)), torch.randint(SOURCES, (n,))
    x = prototype[y] + torch.randn(n, FRAMES, MELS)
    wrong = (torch.rand(n) > quality[source]) & (not clean)
    label = torch.where(wrong, (y + 1) % WORDS, y)
    return x.flatten(1).to(device), label.to(device), source.to(device)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(FRAMES * MELS, 64)
        self.fc2 = nn.Linear(64, WORDS)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


model = Recogniser().to(device)
trust = nn.Parameter(torch.zeros(SOURCES, device=device))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
opt_trust = torch.optim.Adam([trust], lr=3e-2)
scaler = torch.amp.GradScaler("cuda")
x_test, y_test, _ = clips(2000, clean=True)
for step in range(STEPS):
    x, y, source = clips(BATCH)
    x_clean, y_clean, _ = clips(32, clean=True)
    params = dict(model.named_parameters())

    # Outer step: would a step with these weights help on the clean clips?
    with torch.autocast("cuda", dtype=torch.float16):
        losses = F.cross_entropy(functional_call(model, params, (x,)), y, reduction="none")
        weighted = (torch.sigmoid(trust[source]) * losses).mean()
    grads = torch.autograd.grad(scaler.scale(weighted), list(params.values()), create_graph=True)
    moved = {k: p - INNER_LR / scaler.get_scale() * g for (k, p), g in zip(params.items(), grads)}
    with torch.autocast("cuda", dtype=torch.float16):
        outer = F.cross_entropy(functional_call(model, moved, (x_clean,)), y_clean)
    opt_trust.zero_grad()
    outer.backward()
    opt_trust.step()

    # Inner step, with the weights that were found.
    with torch.autocast("cuda", dtype=torch.float16):
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = (torch.sigmoid(trust[source]).detach() * losses).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 70 == 69:
        good, bad = torch.sigmoid(trust[quality > 0.5]).mean(), torch.sigmoid(trust[quality < 0.5]).mean()
        print(f"step {step + 1}  clean loss {outer.item():.3f}  trust {good.item():.3f} / {bad.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    right = (model(x_test).argmax(-1) == y_test).float().mean()
print(f"METRIC {100 * right.item():.2f}")
