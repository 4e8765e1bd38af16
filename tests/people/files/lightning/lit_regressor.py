"""Only the module: the project's train.py makes the Trainer."""
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SineDataset(Dataset):
    def __init__(self, n: int = 512, window: int = 16):
        t = torch.linspace(0, 60, n + window)
        self.series, self.window = torch.sin(t) + 0.1 * torch.sin(7 * t), window

    def __len__(self):
        return len(self.series) - self.window

    def __getitem__(self, i):
        return self.series[i:i + self.window], self.series[i + self.window]


class LitRegressor(L.LightningModule):
    def __init__(self, window: int = 16, width: int = 64, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(window, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def train_dataloader(self):
        return DataLoader(SineDataset(window=self.hparams.window), batch_size=32, shuffle=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
