"""Language of a snippet from hashed trigrams: a frozen table of trigram vectors in half precision, a small net on top
and an evaluator thread that keeps the best snapshot."""

import copy
import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn

TABLE, DIM, LANGUAGES, LENGTH = 600, 24, 8, 20
STEPS, BATCH, EVERY = 160, 128, 20

torch.manual_seed(37)
device = "cuda" if torch.cuda.is_available() else "cpu"

habits = F.softmax(0.8 * torch.randn(LANGUAGES, TABLE), dim=1)
share = F.softmax(torch.linspace(0, 2, LANGUAGES), dim=0)


def snippets(n):
    language = torch.multinomial(share, n, replacement=True)
    grams = torch.multinomial(habits[language], LENGTH, replacement=True)
    return grams.to(device), language.to(device)


class Identifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(TABLE, DIM, dtype=torch.float16)
        self.table.weight.requires_grad_(False)
        self.net = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, LANGUAGES))
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.register_buffer("seen", torch.ones(LANGUAGES))

    def forward(self, grams, language=None):
        if language is not None:
            self.seen += torch.bincount(language, minlength=LANGUAGES)
        vectors = self.table(grams).mean(1) * LENGTH**0.5
        logits = self.net(vectors.to(self.net[0].weight.dtype)).float()
        return logits * self.log_temperature.float().exp() + (self.seen / self.seen.sum()).float().log()


class Evaluator(threading.Thread):
    def __init__(self, model, data):
        super().__init__(daemon=True)
        self.model, self.data = copy.deepcopy(model).eval(), data
        self.model.net.half()
        self.snapshots = queue.Queue()
        self.best, self.best_state = float("inf"), None

    @torch.no_grad()
    def run(self):
        while (state := self.snapshots.get()) is not None:
            self.model.load_state_dict(state)
            total = 0.0
            for grams, language in zip(*(part.split(256) for part in self.data)):
                total += F.cross_entropy(self.model(grams).float(), language, reduction="sum").item()
            if total < self.best:
                self.best, self.best_state = total, state


model = Identifier().to(device)
evaluator = Evaluator(model, snippets(1024))
evaluator.start()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for step in range(1, STEPS + 1):
    grams, language = snippets(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(grams, language), language)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % EVERY == 0:
        evaluator.snapshots.put({name: value.detach().clone() for name, value in model.state_dict().items()})
evaluator.snapshots.put(None)
evaluator.join()
print(f"best validation {evaluator.best / 1024:.4f} scale {scaler.get_scale():.0f}")

model.load_state_dict(evaluator.best_state)
with torch.no_grad():
    grams, language = snippets(5000)
    print(f"metric {F.cross_entropy(model(grams), language).item():.4f}")
