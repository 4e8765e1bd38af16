import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class DynamicLossScale:
    def __init__(self, start=2.0**24, factor=2.0, patience=200, smallest=1.0):
        self.value, self.factor, self.patience, self.smallest = start, factor, patience, smallest
        self.good = 0

    def __call__(self, loss):
        return loss * self.value

    def finite(self, params):
        return all(torch.isfinite(p.grad).all() for p in params if p.grad is not None)

    def unscale(self, params):
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.value)

    def lower(self):
        self.value = max(self.value / self.factor, self.smallest)
        self.good = 0

    def count(self):
        self.good += 1
        if self.good % self.patience == 0:
            self.value *= self.factor


class ConvNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(16 * 4 * 4, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class AccumulatingTrainer:
    def __init__(self, model, lr=0.1, accumulate=4, max_norm=2.0):
        self.model = model.to(device)
        self.params = list(model.parameters())
        self.optimizer = torch.optim.SGD(self.params, lr=lr, momentum=0.9)
        self.scale = DynamicLossScale()
        self.accumulate, self.max_norm = accumulate, max_norm
        self.steps = self.skipped = 0

    def run(self, batches):
        self.optimizer.zero_grad()
        for i, (x, y) in enumerate(batches, 1):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(self.model(x), y) / self.accumulate
            self.scale(loss).backward()
            if i % self.accumulate:
                continue
            if not self.scale.finite(self.params):
                self.scale.lower()
                self.skipped += 1
                continue
            self.scale.unscale(self.params)
            nn.utils.clip_grad_norm_(self.params, self.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scale.count()
            self.steps += 1
        return loss.item() * self.accumulate


def make_images(n, shapes):
    y = torch.randint(len(shapes), (n,))
    x = shapes[y] + 1.2 * torch.randn(n, 1, 16, 16)
    return x.to(device), y.to(device)


def main():
    torch.manual_seed(17)
    shapes = F.interpolate(torch.randn(4, 1, 4, 4), scale_factor=4)
    batches = [make_images(8, shapes) for _ in range(240)]
    trainer = AccumulatingTrainer(ConvNet())
    loss = trainer.run(batches)
    print(f"last loss {loss:.4f}")
    print(f"steps {trainer.steps} skipped {trainer.skipped} scale {trainer.scale.value:g}")
    x, y = make_images(1000, shapes)
    with torch.no_grad():
        accuracy = (trainer.model(x).argmax(1) == y).float().mean().item()
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
