"""Energy-based scores with a Lightning Trainer in 16-bit."""
import argparse

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n=256, dim=64):
        g = torch.Generator().manual_seed(3)
        self.a = torch.randn(n, dim, generator=g) * 40
        self.b = self.a.roll(1, 0)
        self.y = torch.randint(0, 2, (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"a": self.a[i], "b": self.b[i], "target": self.y[i]}


class EnergyNet(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.a = nn.Linear(dim, width)
        self.b = nn.Linear(dim, width)
        self.out = nn.Linear(1, 2)

    def forward(self, a, b):
        # the energy is a product of big numbers; half precision ends at 65504
        q, k = self.a(a) * 20, self.b(b) * 20
        energy = torch.bmm(q.unsqueeze(1), k.unsqueeze(2)).flatten(1)
        return self.out(torch.tanh(energy / 1e6))


class LitEnergy(L.LightningModule):
    def __init__(self, dim=64, width=256, lr=1e-3):
        super().__init__()
        self.net, self.lr = EnergyNet(dim, width), lr

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch["a"], batch["b"]), batch["target"])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=16)
    a = p.parse_args()
    L.Trainer(max_epochs=a.epochs, accelerator="gpu", devices=1, precision="16-mixed", logger=False,
              enable_progress_bar=False, enable_model_summary=False).fit(LitEnergy(), DataLoader(Pairs(), a.batch_size))
