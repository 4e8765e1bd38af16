"""Fine-tune a torchvision backbone on a folder of images.

usage: python finetune.py DATA_DIR --arch resnet18
"""
import argparse
import sys
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_data(root, n=96):
    root = Path(root)
    if root.is_dir() and any(root.iterdir()):
        tf = torchvision.transforms.Compose([
            torchvision.transforms.Resize(64), torchvision.transforms.CenterCrop(64), torchvision.transforms.ToTensor()])
        return torchvision.datasets.ImageFolder(root, tf)
    print("no images found, using random ones", file=sys.stderr)
    return TensorDataset(torch.rand(n, 3, 64, 64), torch.randint(0, 5, (n,)))


def build(arch, classes):
    model = getattr(torchvision.models, arch)(weights=None)
    model.fc = nn.Linear(model.fc.in_features, classes)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder of images, a sub-folder for each class")
    parser.add_argument("--arch", choices=["resnet18", "resnet34"], required=True)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(get_data(args.data), args.batch_size, shuffle=True, num_workers=args.workers)
    model = build(args.arch, args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.amp.autocast("cuda"):
                loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            if i % 4 == 0:
                print(f"[{epoch}/{i}] {loss.item():.4f}")
