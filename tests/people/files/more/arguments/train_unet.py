import argparse
import logging
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split
from tqdm import tqdm


class CarvanaDataset(Dataset):
    def __init__(self, images_dir, masks_dir, scale=1.0):
        self.images_dir = Path(images_dir)
        self.masks_dir = Path(masks_dir)
        self.scale = scale
        self.ids = [f.stem for f in self.images_dir.iterdir() if not f.name.startswith('.')]
        if not self.ids:
            raise RuntimeError(f'No input file found in {images_dir}')

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, idx):
        name = self.ids[idx]
        img = Image.open(self.images_dir / f'{name}.jpg').convert('RGB')
        mask = Image.open(self.masks_dir / f'{name}_mask.gif')
        img = np.asarray(img, dtype=np.float32).transpose(2, 0, 1) / 255
        return {'image': torch.from_numpy(img), 'mask': torch.from_numpy(np.asarray(mask)).long()}


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        mid_channels = mid_channels or out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, 3, padding=1, bias=False), nn.BatchNorm2d(mid_channels), nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.net = nn.Sequential(nn.MaxPool2d(2), DoubleConv(i, o))

    def forward(self, x):
        return self.net(x)


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.up = nn.ConvTranspose2d(i, i // 2, 2, stride=2)
        self.conv = DoubleConv(i, o)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes):
        super().__init__()
        self.n_channels, self.n_classes = n_channels, n_classes
        self.inc = DoubleConv(n_channels, 16)
        self.d1, self.d2, self.d3 = Down(16, 32), Down(32, 64), Down(64, 128)
        self.u1, self.u2, self.u3 = Up(128, 64), Up(64, 32), Up(32, 16)
        self.outc = nn.Conv2d(16, n_classes, 1)

    def forward(self, x):
        a = self.inc(x)
        b = self.d1(a)
        c = self.d2(b)
        d = self.d3(c)
        return self.outc(self.u3(self.u2(self.u1(d, c), b), a))


def dice_loss(pred, target, eps=1e-6):
    inter = 2 * (pred * target).sum(dim=(-1, -2))
    sets = pred.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    return 1 - ((inter + eps) / (sets + eps)).mean()


def train_model(model, device, dir_img, dir_mask, epochs=5, batch_size=1, lr=1e-5, amp=False):
    dataset = CarvanaDataset(dir_img, dir_mask)
    n_val = int(len(dataset) * 0.1)
    train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val])
    loader = DataLoader(train_set, shuffle=True, batch_size=batch_size, num_workers=4, pin_memory=True)
    optimizer = optim.RMSprop(model.parameters(), lr=lr, weight_decay=1e-8, momentum=0.999, foreach=True)
    grad_scaler = torch.cuda.amp.GradScaler(enabled=amp)
    criterion = nn.CrossEntropyLoss() if model.n_classes > 1 else nn.BCEWithLogitsLoss()
    for epoch in range(1, epochs + 1):
        model.train()
        with tqdm(total=len(train_set), desc=f'Epoch {epoch}/{epochs}', unit='img') as pbar:
            for batch in loader:
                images, masks = batch['image'].to(device), batch['mask'].to(device)
                with torch.autocast(device.type if device.type != 'mps' else 'cpu', enabled=amp):
                    pred = model(images)
                    loss = criterion(pred, masks)
                    loss += dice_loss(F.softmax(pred, dim=1).float(),
                                      F.one_hot(masks, model.n_classes).permute(0, 3, 1, 2).float())
                optimizer.zero_grad(set_to_none=True)
                grad_scaler.scale(loss).backward()
                grad_scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                grad_scaler.step(optimizer)
                grad_scaler.update()
                pbar.update(images.shape[0])


def get_args():
    parser = argparse.ArgumentParser(description='Train the UNet on images and target masks')
    parser.add_argument('imgs', help='folder of images')
    parser.add_argument('masks', help='folder of masks')
    parser.add_argument('--epochs', '-e', type=int, default=5)
    parser.add_argument('--batch-size', '-b', dest='batch_size', type=int, default=1)
    parser.add_argument('--learning-rate', '-l', type=float, default=1e-5, dest='lr')
    parser.add_argument('--amp', action='store_true', default=False, help='Use mixed precision')
    parser.add_argument('--classes', '-c', type=int, default=2)
    return parser.parse_args()


if __name__ == '__main__':
    args = get_args()
    logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s')
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    model = UNet(n_channels=3, n_classes=args.classes).to(device)
    train_model(model, device, args.imgs, args.masks, args.epochs, args.batch_size, args.lr, args.amp)
