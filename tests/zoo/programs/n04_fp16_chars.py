"""Character LM trained with fp16 weights and an FP32 master copy."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
CTX, BATCH, SCALE = 16, 32, 2.0 ** 7

WORDS = "the cat sat on a mat while rain fell and old men told tales of sea salt and far lands".split()
gen = torch.Generator().manual_seed(4)
text = " ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (4000,), generator=gen).tolist())
vocab = sorted(set(text))
ids = torch.tensor([vocab.index(c) for c in text])


class EqualizedLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.gain = n_in ** -0.5

    def forward(self, x):
        return F.linear(x * self.gain, self.weight, self.bias)


class CharLM(nn.Module):
    def __init__(self, v, d=32, h=96):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.fc1 = EqualizedLinear(CTX * d, h)
        self.fc2 = EqualizedLinear(h, h)
        self.out = EqualizedLinear(h, v)

    def forward(self, x):
        x = self.emb(x).flatten(1)
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.out(x)


def get_batch(lo, hi):
    at = torch.randint(lo, hi - CTX - 1, (BATCH,), generator=gen)
    x = torch.stack([ids[a:a + CTX] for a in at])
    y = torch.stack([ids[a + CTX] for a in at])
    return x.to(device), y.to(device)


class MasterParams:
    def __init__(self, model, lr):
        self.model_params = list(model.parameters())
        self.masters = [p.detach().clone().float().requires_grad_() for p in self.model_params]
        self.opt = torch.optim.Adam(self.masters, lr=lr)

    def refresh(self):
        for m, p in zip(self.masters, self.model_params):
            m.data.copy_(p.data)

    def step(self):
        grads = [p.grad.float() / SCALE for p in self.model_params]
        if not all(torch.isfinite(g).all() for g in grads):
            return False
        for m, g in zip(self.masters, grads):
            m.grad = g
        self.opt.step()
        for m, p in zip(self.masters, self.model_params):
            p.data.copy_(m.data)
        return True


model = CharLM(len(vocab)).to(device).half()
trainer = MasterParams(model, lr=1e-4)
split = int(0.9 * len(ids))
skipped = 0
for step in range(300):
    trainer.refresh()
    model.zero_grad()
    x, y = get_batch(0, split)
    loss = F.cross_entropy(model(x).float(), y)
    (loss * SCALE).backward()
    skipped += not trainer.step()
    if step % 50 == 0:
        print(f"{step:5d} loss {loss.item():.4f} skipped {skipped}")

with torch.no_grad():
    val = sum(F.cross_entropy(model(x).float(), y).item() for x, y in (get_batch(split, len(ids)) for _ in range(30))) / 30
print(f"validation loss {val:.4f}")
