"""Tags the words of invoices; each word comes with its shape and, for amounts, its numeric value."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, TAGS, LENGTH, BATCH = 150, 6, 20, 32


class LossScale:
    """A dynamic loss scale: a step with gradients that are not finite is tried again with a smaller one."""

    def __init__(self, scale=2.0**13, backoff=0.5, tries=6):
        self.scale = scale
        self.backoff = backoff
        self.tries = tries

    def step(self, optimizer, compute_loss):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for _ in range(self.tries):
            optimizer.zero_grad(set_to_none=True)
            loss = compute_loss()
            (loss * self.scale).backward()
            grads = [weight.grad for weight in weights if weight.grad is not None]
            if all(bool(torch.isfinite(grad).all()) for grad in grads):
                for grad in grads:
                    grad.div_(self.scale)
                optimizer.step()
                return loss
            self.scale *= self.backoff
        return loss


class Tagger(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.amount = nn.Linear(2, dim)
        self.context = nn.Conv1d(dim, dim, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, TAGS))

    def forward(self, words, amounts):
        x = self.embed(words) + torch.tanh(self.amount(amounts))
        around = F.relu(self.context(x.transpose(1, 2))).transpose(1, 2)
        return self.head(torch.cat([x, around], dim=-1))


class Invoices:
    """The tag hangs on the word and on the word before; some words are amounts of money."""

    def __init__(self):
        self.own = torch.randn(WORDS, TAGS) * 2
        self.before = torch.randn(WORDS, TAGS)

    def batch(self):
        words = torch.randint(0, WORDS, (BATCH, LENGTH))
        is_amount = words < 15
        value = torch.exp(torch.randn(BATCH, LENGTH) * 2.6 + 4.0)
        amounts = torch.stack([is_amount.float(), torch.where(is_amount, value, torch.zeros(()))], dim=-1)
        evidence = self.own[words] + torch.roll(self.before[words], 1, dims=1)
        return words.to(device), amounts.to(device), evidence.argmax(-1).to(device)


def main(steps=80):
    invoices = Invoices()
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scale = LossScale()
    for step in range(steps):
        words, amounts, tags = invoices.batch()

        def compute_loss():
            with torch.autocast("cuda", dtype=torch.float16):
                logits = model(words, amounts)
                return F.cross_entropy(logits.flatten(0, 1), tags.flatten())

        loss = scale.step(optimizer, compute_loss)
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.4f} scale {scale.scale:g}")
    right = []
    with torch.no_grad():
        for _ in range(5):
            words, amounts, tags = invoices.batch()
            right.append((model(words, amounts).argmax(-1) == tags).float().mean().item())
    print(f"final loss {loss.item():.4f} accuracy {sum(right) / len(right):.4f} scale {scale.scale:g}")


if __name__ == "__main__":
    main()
