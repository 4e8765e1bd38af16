"""Train a small ResNet on (fake) CIFAR-10 with automatic mixed precision."""
import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, block, num_blocks, num_classes=10):
        super().__init__()
        self.in_planes = 16
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._make_layer(block, 16, num_blocks[0], 1)
        self.layer2 = self._make_layer(block, 32, num_blocks[1], 2)
        self.linear = nn.Linear(32, num_classes)

    def _make_layer(self, block, planes, n, stride):
        layers = []
        for s in [stride] + [1] * (n - 1):
            layers.append(block(self.in_planes, planes, s))
            self.in_planes = planes
        return nn.Sequential(*layers)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer2(self.layer1(out))
        out = F.adaptive_avg_pool2d(out, 1).flatten(1)
        return self.linear(out)


def parse_args():
    p = argparse.ArgumentParser(description="CIFAR-10 training")
    p.add_argument("--lr", default=0.1, type=float)
    p.add_argument("--epochs", default=2, type=int)
    p.add_argument("--batch-size", default=32, type=int)
    p.add_argument("--out", default="checkpoints")
    p.add_argument("--no-amp", action="store_true")
    return p.parse_args()


def train_one_epoch(net, loader, criterion, optimizer, scaler, device, args):
    net.train()
    total, correct, loss_sum = 0, 0, 0.0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        with torch.cuda.amp.autocast(enabled=not args.no_amp):
            outputs = net(inputs)
            loss = criterion(outputs, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss_sum += loss.item()
        correct += outputs.argmax(1).eq(targets).sum().item()
        total += targets.size(0)
    return loss_sum / len(loader), 100.0 * correct / total


def main():
    args = parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tf = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    train_set = datasets.FakeData(640, (3, 32, 32), 10, transform=tf)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=0)
    net = ResNet(BasicBlock, [1, 1]).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.cuda.amp.GradScaler(enabled=not args.no_amp)
    for epoch in range(args.epochs):
        start = time.time()
        loss, acc = train_one_epoch(net, loader, criterion, optimizer, scaler, device, args)
        scheduler.step()
        print(f"epoch {epoch}: loss {loss:.3f} acc {acc:.2f}% ({time.time() - start:.1f}s)")
        os.makedirs(args.out, exist_ok=True)
        torch.save({"net": net.state_dict(), "scaler": scaler.state_dict(), "optimizer": optimizer.state_dict()},
                   os.path.join(args.out, "last.pth"))


if __name__ == "__main__":
    main()
