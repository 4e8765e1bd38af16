"""Fine-tunes a language model on a second domain while elastic weight consolidation guards the first."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, CONTEXT, DIM = 64, 3, 32
device = "cuda" if torch.cuda.is_available() else "cpu"


class NgramLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.hidden = nn.Linear(CONTEXT * DIM, 96)
        self.head = nn.Linear(96, VOCAB)

    def forward(self, context):
        return self.head(torch.tanh(self.hidden(self.embed(context).flatten(1))))


class Domain:
    def __init__(self, sharpness=3.0):
        self.follow = torch.softmax(sharpness * torch.randn(VOCAB, VOCAB), dim=-1)

    def batch(self, size=512):
        words = [torch.randint(0, VOCAB, (size,))]
        for _ in range(CONTEXT):
            words.append(torch.multinomial(self.follow[words[-1]], 1).squeeze(1))
        words = torch.stack(words, dim=1).to(device)
        return words[:, :-1], words[:, -1]


class Fisher:
    """Sums the squared gradients of all weights, as backward passes hand them over, and divides by the examples."""

    def __init__(self, model, examples):
        self.examples = examples
        self.diagonal = {}
        self.handles = []
        for name, weight in model.named_parameters():
            self.diagonal[name] = torch.zeros_like(weight, dtype=torch.float16)
            self.handles.append(weight.register_post_accumulate_grad_hook(self.make_hook(name)))

    def make_hook(self, name):
        def hook(weight):
            self.diagonal[name].addcmul_(weight.grad, weight.grad, value=1 / self.examples)

        return hook

    def remove(self):
        for handle in self.handles:
            handle.remove()

    def penalty(self, model, anchor):
        cost = 0.0
        for name, weight in model.named_parameters():
            cost = cost + (self.diagonal[name].float() * (weight - anchor[name]) ** 2).sum()
        return cost


def loss_of(model, domain):
    with torch.autocast("cuda", dtype=torch.float16):
        context, target = domain.batch()
        return F.cross_entropy(model(context), target)


def fit(model, domain, steps, lr, extra=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(steps):
        loss = loss_of(model, domain)
        total = loss if extra is None else loss + extra()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


@torch.no_grad()
def evaluate(model, domain):
    return sum(loss_of(model, domain).item() for _ in range(8)) / 8


def main():
    torch.manual_seed(8)
    first, second = Domain(), Domain()
    model = NgramLM().to(device)
    fit(model, first, steps=80, lr=1e-2)
    before = evaluate(model, first)

    batches = 30
    fisher = Fisher(model, examples=batches * 512)
    for _ in range(batches):
        model.zero_grad(set_to_none=True)
        loss_of(model, first).backward()
    fisher.remove()
    anchor = {name: weight.detach() for name, weight in copy.deepcopy(model).named_parameters()}

    strength = 2e6
    fit(model, second, steps=60, lr=3e-3, extra=lambda: strength * fisher.penalty(model, anchor))
    mass = sum(one.float().sum().item() for one in fisher.diagonal.values())
    moved = sum((w - anchor[n]).pow(2).sum().item() for n, w in model.named_parameters()) ** 0.5
    print(f"fisher {mass:.4e} moved {moved:.4f}")
    print(f"first domain {before:.4f} -> {evaluate(model, first):.4f}, second {evaluate(model, second):.4f}")


if __name__ == "__main__":
    main()
