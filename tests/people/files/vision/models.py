"""Image models of the project; the training code imports them."""
import math

import torch
import torch.nn as nn

__all__ = ["SmallCNN", "WideResNet", "build_model"]


def conv3x3(i, o, stride=1):
    return nn.Conv2d(i, o, kernel_size=3, stride=stride, padding=1, bias=False)


class SmallCNN(nn.Module):
    def __init__(self, num_classes, in_chans=3, dropout=0.1):
        super().__init__()
        self.features = nn.Sequential(
            conv3x3(in_chans, 16), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            conv3x3(16, 32), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(32 * 16, num_classes))

    def forward(self, images):
        return self.classifier(self.features(images))


class WideBlock(nn.Module):
    def __init__(self, in_planes, out_planes, stride, drop_rate=0.0):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_planes), conv3x3(in_planes, out_planes, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(out_planes), conv3x3(out_planes, out_planes)
        self.drop = nn.Dropout(drop_rate)
        self.short = nn.Conv2d(in_planes, out_planes, 1, stride, bias=False) if in_planes != out_planes else nn.Identity()

    def forward(self, x):
        h = self.conv1(torch.relu(self.bn1(x)))
        h = self.conv2(self.drop(torch.relu(self.bn2(h))))
        return h + self.short(x)


class WideResNet(nn.Module):
    def __init__(self, depth: int, widen_factor: int, num_classes: int = 10):
        super().__init__()
        assert (depth - 4) % 6 == 0, "depth should be 6n+4"
        n = (depth - 4) // 6
        ch = [16, 16 * widen_factor, 32 * widen_factor, 64 * widen_factor]
        self.stem = conv3x3(3, ch[0])
        blocks = []
        for stage in range(3):
            for j in range(n):
                blocks.append(WideBlock(ch[stage] if j == 0 else ch[stage + 1], ch[stage + 1], 2 if stage and j == 0 else 1))
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(ch[3])
        self.fc = nn.Linear(ch[3], num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.normal_(m.weight, 0, math.sqrt(2.0 / (m.kernel_size[0] ** 2 * m.out_channels)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.bn(self.blocks(self.stem(x))))
        return self.fc(h.mean((2, 3)))


def build_model(name: str, num_classes: int = 10) -> nn.Module:
    if name == "small":
        return SmallCNN(num_classes)
    if name == "wrn":
        return WideResNet(depth=10, widen_factor=2, num_classes=num_classes)
    raise ValueError(f"unknown model {name}")
