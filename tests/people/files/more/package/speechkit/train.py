"""python -m speechkit.train --epochs 10"""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

from .data import FakeSpeech, collate
from .nn import Conformer


def train(args):
    device = torch.device(args.device)
    model = Conformer(40, 30).to(device)
    ctc = nn.CTCLoss(zero_infinity=True)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device.type, enabled=args.fp16)
    loader = DataLoader(FakeSpeech(), batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    for epoch in range(args.epochs):
        for step, (mels, ml, labels, ll) in enumerate(loader):
            opt.zero_grad()
            with torch.autocast(device.type, dtype=torch.float16, enabled=args.fp16):
                logp, lengths = model(mels.to(device), ml.to(device))
            loss = ctc(logp.float().transpose(0, 1), labels.to(device), lengths, ll.to(device))
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} ctc {loss.item():.3f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--device", default="cuda")
    p.add_argument("--fp16", action=argparse.BooleanOptionalAction, default=True)
    train(p.parse_args())


if __name__ == "__main__":
    main()
