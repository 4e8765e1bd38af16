"""Sentiment classifier: embeddings, transformer encoder, masked mean pooling."""
from __future__ import annotations

import argparse
import dataclasses
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


@dataclasses.dataclass
class ModelConfig:
    vocab_size: int = 500
    d_model: int = 32
    n_heads: int = 4
    n_layers: int = 2
    n_classes: int = 2
    dropout: float = 0.1
    pad_id: int = 0


class ReviewDataset(Dataset):
    def __init__(self, size: int, cfg: ModelConfig, seed: int = 0):
        rng = random.Random(seed)
        self.items = []
        for _ in range(size):
            n = rng.randint(5, 30)
            label = rng.randint(0, cfg.n_classes - 1)
            self.items.append((torch.tensor([rng.randrange(1 + 100 * label, cfg.vocab_size) for _ in range(n)]), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        return self.items[idx]


def collate(batch):
    ids = pad_sequence([b[0] for b in batch], batch_first=True, padding_value=0)
    return {"input_ids": ids, "attention_mask": ids.ne(0), "labels": torch.tensor([b[1] for b in batch])}


class TextClassifier(nn.Module):
    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab_size, cfg.d_model, padding_idx=cfg.pad_id)
        layer = nn.TransformerEncoderLayer(cfg.d_model, cfg.n_heads, 4 * cfg.d_model, cfg.dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, cfg.n_layers, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.d_model, cfg.n_classes)

    def forward(self, input_ids, attention_mask):
        h = self.encoder(self.emb(input_ids), src_key_padding_mask=~attention_mask)
        m = attention_mask.unsqueeze(-1).float()
        return self.head((h * m).sum(1) / m.sum(1).clamp(min=1))


def run_epoch(model, loader, optimizer, scaler, device):
    model.train()
    loss_fn = nn.CrossEntropyLoss()
    for batch in loader:
        labels = batch.pop("labels").to(device)
        batch = {k: v.to(device) for k, v in batch.items()}
        optimizer.zero_grad()
        with torch.autocast(device_type=device.type, dtype=torch.float16):
            loss = loss_fn(model(**batch), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--bs", type=int, default=16)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args(argv)
    torch.manual_seed(args.seed)
    device = torch.device("cuda")
    cfg = ModelConfig()
    loader = DataLoader(ReviewDataset(256, cfg), batch_size=args.bs, shuffle=True, collate_fn=collate)
    model = TextClassifier(cfg).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device.type)
    for e in range(args.epochs):
        print("epoch", e, "loss", run_epoch(model, loader, optimizer, scaler, device))


if __name__ == "__main__":
    main()
