"""Small classifier with a Gaussian model of its features, used to reject images of unknown kinds."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, SIZE, BATCH = 4, 16, 64


class Shapes:
    """Gratings of one of several orientations, with noise."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        axis = torch.linspace(-1, 1, SIZE)
        self.y, self.x = torch.meshgrid(axis, axis, indexing="ij")

    def known(self, count):
        label = torch.randint(0, CLASSES, (count,), generator=self.generator)
        angle = label.float() * torch.pi / CLASSES
        return self.draw(angle, 9.0), label.to(device)

    def unknown(self, count):
        label = torch.randint(0, CLASSES, (count,), generator=self.generator)
        return self.draw((label.float() + 0.5) * torch.pi / CLASSES, 9.0)

    def draw(self, angle, frequency):
        phase = torch.rand(len(angle), 1, 1, generator=self.generator) * 6.28
        wave = angle.cos().view(-1, 1, 1) * self.x + angle.sin().view(-1, 1, 1) * self.y
        image = torch.sin(frequency * wave + phase)
        image = image + 0.3 * torch.randn(image.shape, generator=self.generator)
        return image.unsqueeze(1).to(device)


class Encoder(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 5, padding=2)
        self.body = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.project = nn.Linear(32, dim)
        self.classifier = nn.Linear(dim, CLASSES)

    def forward(self, x):
        h = F.relu(self.body(F.relu(self.stem(x))))
        features = self.project(h.mean((2, 3)))
        return features, self.classifier(F.relu(features))


class ClassGaussians:
    """Mean and variance of the features of each class, gathered batch by batch."""

    def __init__(self):
        self.count = self.total = self.square = None

    @torch.no_grad()
    def update(self, features, label):
        if self.total is None:
            self.count = features.new_zeros(CLASSES)
            self.total = features.new_zeros(CLASSES, features.shape[1])
            self.square = features.new_zeros(CLASSES, features.shape[1])
        self.count.index_add_(0, label, torch.ones_like(features[:, 0]))
        self.total.index_add_(0, label, features)
        self.square.index_add_(0, label, features * features)

    def fit(self):
        mean = self.total / self.count[:, None]
        variance = self.square / self.count[:, None] - mean**2
        return mean.float(), variance.float().clamp_min(1e-4)

    def distance(self, features):
        mean, variance = self.fit()
        return ((features.float()[:, None] - mean) ** 2 / variance + variance.log()).sum(-1).amin(1)


def auroc(inside, outside):
    return (outside[:, None] > inside[None]).float().mean().item()


def main():
    torch.manual_seed(0)
    data = Shapes(0)
    model = Encoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    gaussians = ClassGaussians()
    for step in range(80):
        image, label = data.known(BATCH)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            features, logits = model(image)
            loss = F.cross_entropy(logits, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 40:
            gaussians.update(features.detach(), label)
        if step % 20 == 19:
            print(f"step {step + 1} loss {loss.item():.4f}")

    model.eval()
    image, label = data.known(256)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        features, logits = model(image)
        strange, _ = model(data.unknown(256))
    accuracy = (logits.argmax(1) == label).float().mean().item()
    score = auroc(gaussians.distance(features), gaussians.distance(strange))
    mean, variance = gaussians.fit()
    print(f"accuracy {accuracy:.3f} auroc {score:.3f}")
    print(f"seen {gaussians.count.sum().item():.0f} mean {mean.norm().item():.3f} variance {variance.mean().item():.4f}")


if __name__ == "__main__":
    main()
