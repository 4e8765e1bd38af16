"""Trains a small network, ranks its channels by a Taylor criterion and prunes the lowest."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES = 6


def make_batch(generator, prototypes, count=8):
    label = torch.randint(0, CLASSES, (count,), generator=generator)
    shift = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
    image = torch.stack([prototypes[k].roll(tuple(s), (1, 2)) for k, s in zip(label.tolist(), shift)])
    image = image + 0.3 * torch.randn(image.shape, generator=generator)
    return image.to(device), label.to(device)


class ConvUnit(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.register_buffer("mask", torch.ones(outside))

    def forward(self, x):
        out = F.relu(self.norm(self.conv(x)))
        return out * self.mask.view(1, -1, 1, 1).to(out.dtype)


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.unit1 = ConvUnit(1, width)
        self.unit2 = ConvUnit(width, width, stride=2)
        self.unit3 = ConvUnit(width, width, stride=2)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.unit3(self.unit2(self.unit1(x))).mean((2, 3)))


class TaylorRank:
    """Sums the squared first-order effect of each channel on the loss."""

    def __init__(self, units):
        self.units = units
        self.scores = {unit: torch.zeros(unit.mask.shape[0], device=device) for unit in units}
        self.kept = {}
        for unit in units:
            unit.register_forward_hook(self.keep)

    def keep(self, unit, inputs, output):
        if output.requires_grad:
            self.kept[unit] = output.detach()
            output.register_hook(lambda grad: self.add(unit, grad))

    def add(self, unit, grad):
        effect = (self.kept.pop(unit) * grad).sum((0, 2, 3))
        self.scores[unit] += effect.pow(2)

    @torch.no_grad()
    def prune(self, share):
        for unit, score in self.scores.items():
            lowest = score.argsort()[: int(share * len(score))]
            unit.mask[lowest] = 0.0


@torch.no_grad()
def accuracy(model, generator, prototypes):
    model.eval()
    image, label = make_batch(generator, prototypes, 128)
    with torch.autocast("cuda", dtype=torch.float16):
        return (model(image).argmax(1) == label).float().mean().item()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(5)
    prototypes = torch.randn(CLASSES, 1, 8, 8, generator=generator)
    model = Net().to(device)
    rank = TaylorRank([model.unit1, model.unit2, model.unit3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    model.train()
    for step in range(70):
        image, label = make_batch(generator, prototypes)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(image), label)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 19:
            print(f"step {step + 1} loss {loss.item():.4f}")

    before = accuracy(model, generator, prototypes)
    rank.prune(0.3)
    after = accuracy(model, generator, prototypes)
    for i, unit in enumerate(rank.units, 1):
        score = rank.scores[unit]
        print(f"unit{i} share of the best channel {(score.max() / score.sum()).item():.4f}")
    print(f"accuracy {before:.3f} pruned {after:.3f}")


if __name__ == "__main__":
    main()
