"""Edge detection with class-balanced cross entropy at two depths, as in HED."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_batch(generator, count=8, size=24):
    """Bright rectangles on a dark ground, and the map of their borders."""
    image = torch.zeros(count, 1, size, size)
    edge = torch.zeros(count, 1, size, size)
    for i in range(count):
        top, left = torch.randint(2, size // 2, (2,), generator=generator).tolist()
        height, width = torch.randint(6, size // 2 - 2, (2,), generator=generator).tolist()
        image[i, 0, top : top + height, left : left + width] = 1.0
        inner = image[i, 0, top + 1 : top + height - 1, left + 1 : left + width - 1]
        edge[i, 0, top : top + height, left : left + width] = 1.0
        edge[i, 0, top + 1 : top + height - 1, left + 1 : left + width - 1] = 0.0
        inner.mul_(0.8)
    image += 0.05 * torch.randn(image.shape, generator=generator)
    return image.to(device), edge.to(device)


class Block(nn.Sequential):
    def __init__(self, inside, outside):
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
        )


class EdgeNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.fine = Block(1, width)
        self.coarse = Block(width, 2 * width)
        self.side1 = nn.Conv2d(width, 1, 1)
        self.side2 = nn.Conv2d(2 * width, 1, 1)
        self.fuse = nn.Conv2d(2, 1, 1)
        nn.init.constant_(self.fuse.weight, 0.5)

    def forward(self, x):
        fine = self.fine(x)
        coarse = self.coarse(F.max_pool2d(fine, 2))
        first = self.side1(fine)
        second = F.interpolate(self.side2(coarse), scale_factor=2, mode="bilinear", align_corners=False)
        return [first, second, self.fuse(torch.cat([first, second.to(first.dtype)], 1))]


class BalancedEdgeLoss(nn.Module):
    """Weights edges by the share of the ground and the ground by the share of the edges."""

    def forward(self, logits, edge):
        beta = 1 - edge.mean()
        prob = torch.sigmoid(logits)
        on = -beta * torch.log(prob)
        off = -(1 - beta) * torch.log(1 - prob)
        return torch.where(edge > 0.5, on, off).mean()


def f_measure(logits, edge):
    found = logits > 0
    hit = (found & (edge > 0.5)).sum().float()
    return (2 * hit / (found.sum() + (edge > 0.5).sum()).clamp(min=1)).item()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = EdgeNet().to(device)
    criterion = BalancedEdgeLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    for step in range(70):
        image, edge = make_batch(generator)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = model(image)
            loss = sum(criterion(output, edge) for output in outputs)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.5f} F {f_measure(outputs[-1].detach(), edge):.3f}")

    image, edge = make_batch(generator, 16)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = model(image)
        loss = sum(criterion(output, edge) for output in outputs)
    print(f"test loss {loss.item():.5f} F {f_measure(outputs[-1], edge):.3f}")


main()
