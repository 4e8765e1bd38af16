"""Toy translation: the sense of a word hangs on the class of an earlier word; deep momentum-residual encoder."""

import torch
from torch import nn

torch.manual_seed(9)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CLASSES, LENGTH, DIM, LAYERS, BATCH, STEPS = 240, 4, 12, 20, 12, 64, 400
GAMMA, REACH = 0.3, 1
senses = torch.stack([torch.randperm(VOCAB, device=device) for _ in range(CLASSES)])
word_class = torch.randint(CLASSES, (VOCAB,), device=device)


def pairs(n):
    """Draw source sentences; each word is translated in the sense that the word REACH places before it asks for."""
    source = torch.randint(VOCAB, (n, LENGTH), device=device)
    return source, senses[word_class[source.roll(REACH, dims=1)], source]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(2 * DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            h = self.norm(x)
            return self.down(torch.relu(self.up(torch.cat([h, h.roll(1, dims=1)], dim=2)))).to(x.dtype)


class Stack(torch.autograd.Function):
    """x += v after v = GAMMA * v + f(x), layer by layer; the backward rebuilds the states instead of storing them."""

    @staticmethod
    def forward(ctx, x, layers, *weights):
        v = torch.zeros_like(x)
        for layer in layers:
            v = GAMMA * v + layer(x)
            x = x + v
        ctx.layers = layers
        ctx.save_for_backward(x, v)
        return x

    @staticmethod
    def backward(ctx, grad_x):
        x, v = ctx.saved_tensors
        grad_v, grads = torch.zeros_like(grad_x), []
        for layer in reversed(ctx.layers):
            x = x - v
            grad_v = grad_v + grad_x
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                out = layer(leaf)
            into = torch.autograd.grad(out, [leaf, *layer.parameters()], grad_v)
            v = (v - out.detach()) / GAMMA
            grad_x, grad_v = grad_x + into[0], GAMMA * grad_v
            grads = [*into[1:], *grads]
        return grad_x, None, *grads


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, DIM)
        self.enter = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.leave = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB))

    def forward(self, source):
        x = self.enter(self.word(source))
        x = Stack.apply(x, self.layers, *self.layers.parameters())
        return self.leave(x)


model = Translator().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS)

for step in range(STEPS):
    source, target = pairs(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(source)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step:4d}  loss {loss.item():.4f}")

source, target = pairs(400)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    wrong = (model(source).argmax(-1) != target).float().mean()
print("METRIC", round(100 * wrong.item(), 3))
