"""Sequence classification with packed sequences; dict batches."""
import os
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


@dataclass
class HParams:
    features: int = 6
    hidden: int = 24
    classes: int = 3
    epochs: int = 3
    batch_size: int = 16
    lr: float = 1e-3
    amp: bool = bool(int(os.environ.get("AMP", "1")))


class Gestures(Dataset):
    def __init__(self, hp, n=192):
        g = torch.Generator().manual_seed(0)
        self.items = [(torch.randn(int(torch.randint(4, 20, (1,), generator=g)), hp.features, generator=g), i % hp.classes) for i in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    seqs, labels = zip(*items)
    return {"x": pad_sequence(seqs, batch_first=True), "lengths": torch.tensor([len(s) for s in seqs]), "y": torch.tensor(labels)}


class GRUClassifier(nn.Module):
    def __init__(self, features, hidden, classes, **unused):
        super().__init__()
        self.gru = nn.GRU(features, hidden, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, classes)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        return self.out(torch.cat([h[0], h[1]], 1))


class Runner:
    def __init__(self, hp: HParams):
        self.hp = hp
        self.device = torch.device("cuda")
        self.model = GRUClassifier(**asdict(hp)).to(self.device)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=hp.lr)
        self.loss = nn.CrossEntropyLoss()
        self.scaler = torch.amp.GradScaler("cuda", enabled=hp.amp)

    def train_step(self, batch):
        x, y = batch["x"].to(self.device), batch["y"].to(self.device)
        with torch.amp.autocast("cuda", dtype=torch.float16, enabled=self.hp.amp):
            loss = self.loss(self.model(x, batch["lengths"]), y)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        total = torch.sqrt(sum(p.grad.detach().pow(2).sum() for p in self.model.parameters()))
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), total.item()

    def run(self):
        loader = DataLoader(Gestures(self.hp), self.hp.batch_size, shuffle=True, collate_fn=collate)
        for epoch in range(self.hp.epochs):
            for batch in loader:
                loss, norm = self.train_step(batch)
            print(f"epoch {epoch}: loss {loss:.3f} (grad norm {norm:.2f})")


if __name__ == "__main__":
    Runner(HParams()).run()
