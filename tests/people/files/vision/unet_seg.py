import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset


@dataclass
class TrainConfig:
    in_channels: int = 3
    classes: int = 4
    base: int = 8
    lr: float = 1e-3
    batch_size: int = 4
    epochs: int = 2
    size: int = 48
    clip: float = 1.0
    device: str = "cuda"


class ShapesDataset(Dataset):
    """Random rectangles on a noisy background."""

    def __init__(self, n, size, classes):
        self.n, self.size, self.classes = n, size, classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(i)
        img = torch.randn(3, self.size, self.size) * 0.1
        mask = torch.zeros(self.size, self.size, dtype=torch.long)
        for c in range(1, self.classes):
            y, x = rng.randrange(self.size - 12), rng.randrange(self.size - 12)
            mask[y:y + 12, x:x + 12] = c
            img[:, y:y + 12, x:x + 12] += c / self.classes
        return {"image": img, "mask": mask}


class DoubleConv(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(in_ch, out_ch, 3, padding=1), nn.BatchNorm2d(out_ch), nn.ReLU(inplace=True),
            nn.Conv2d(out_ch, out_ch, 3, padding=1), nn.BatchNorm2d(out_ch), nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.block(x)


class UNet(nn.Module):
    def __init__(self, cfg: TrainConfig):
        super().__init__()
        b = cfg.base
        self.inc = DoubleConv(cfg.in_channels, b)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(b, 2 * b))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * b, 4 * b))
        self.up1 = nn.ConvTranspose2d(4 * b, 2 * b, 2, stride=2)
        self.dec1 = DoubleConv(4 * b, 2 * b)
        self.up2 = nn.ConvTranspose2d(2 * b, b, 2, stride=2)
        self.dec2 = DoubleConv(2 * b, b)
        self.outc = nn.Conv2d(b, cfg.classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        y = self.dec1(torch.cat([self.up1(x3), x2], 1))
        y = self.dec2(torch.cat([self.up2(y), x1], 1))
        return self.outc(y)


def dice_loss(logits, target, eps=1e-6):
    probs = logits.float().softmax(1)
    onehot = nn.functional.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
    inter = (probs * onehot).sum((0, 2, 3))
    return 1 - ((2 * inter + eps) / (probs.sum((0, 2, 3)) + onehot.sum((0, 2, 3)) + eps)).mean()


def train(cfg=TrainConfig()):
    dl = DataLoader(ShapesDataset(64, cfg.size, cfg.classes), batch_size=cfg.batch_size, shuffle=True)
    model = UNet(cfg).to(cfg.device)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scaler = GradScaler()
    ce = nn.CrossEntropyLoss()
    for epoch in range(cfg.epochs):
        running = 0.0
        for batch in dl:
            img, mask = batch["image"].to(cfg.device), batch["mask"].to(cfg.device)
            opt.zero_grad(set_to_none=True)
            with autocast():
                logits = model(img)
                loss = ce(logits, mask) + dice_loss(logits, mask)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            scaler.step(opt)
            scaler.update()
            running += loss.item()
        print(f"epoch {epoch} loss {running / len(dl):.4f}")
        torch.save(model.state_dict(), f"unet_{epoch}.pt")


if __name__ == "__main__":
    train()
