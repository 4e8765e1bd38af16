import torch
from torch import nn, optim
import lightning.pytorch as pl
from torch.utils.data import DataLoader


class ConvEncoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 16, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(16 * 49, latent))

    def forward(self, x):
        return self.net(x)


class ConvDecoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.fc = nn.Linear(latent, 16 * 49)
        self.net = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid())

    def forward(self, z):
        return self.net(self.fc(z).view(-1, 16, 7, 7))


class LitAutoEncoder(pl.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def training_step(self, batch, batch_idx):
        x = batch
        x_hat = self.decoder(self.encoder(x))
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-3)


images = torch.rand(256, 1, 28, 28)
train_loader = DataLoader(images, batch_size=16, shuffle=True)
autoencoder = LitAutoEncoder(ConvEncoder(16), ConvDecoder(16))
trainer = pl.Trainer(limit_train_batches=40, max_epochs=1, accelerator="cuda", precision="bf16-mixed", enable_progress_bar=False)
trainer.fit(model=autoencoder, train_dataloaders=train_loader)
