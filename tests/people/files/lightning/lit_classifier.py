"""LightningModule + LightningDataModule, the tutorial way."""
from argparse import ArgumentParser

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class FakeMNIST(L.LightningDataModule):
    def __init__(self, data_dir: str = "./data", batch_size: int = 16):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        ds = TensorDataset(torch.rand(320, 1, 28, 28), torch.randint(0, 10, (320,)))
        self.train_set, self.val_set = random_split(ds, [256, 64])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size)


class LitClassifier(L.LightningModule):
    def __init__(self, hidden_dim: int = 64, learning_rate: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.l1 = nn.Linear(28 * 28, hidden_dim)
        self.drop = nn.Dropout(0.1)
        self.l2 = nn.Linear(hidden_dim, 10)

    def forward(self, x):
        x = x.view(x.size(0), -1)
        return self.l2(self.drop(torch.relu(self.l1(x))))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1)]


def cli_main():
    parser = ArgumentParser()
    parser.add_argument("--max_epochs", type=int, default=2)
    parser.add_argument("--precision", default="16-mixed")
    args = parser.parse_args()
    L.seed_everything(1234)
    trainer = L.Trainer(max_epochs=args.max_epochs, accelerator="gpu", devices=1, precision=args.precision,
                        gradient_clip_val=1.0, enable_progress_bar=False)
    trainer.fit(LitClassifier(), datamodule=FakeMNIST())


if __name__ == "__main__":
    cli_main()
