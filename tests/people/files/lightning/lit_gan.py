"""GAN with manual optimization in Lightning."""
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, latent_dim, img_shape):
        super().__init__()
        self.img_shape = img_shape
        self.model = nn.Sequential(nn.Linear(latent_dim, 64), nn.LeakyReLU(0.2), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.LeakyReLU(0.2),
                                   nn.Linear(128, img_shape[0] * img_shape[1] * img_shape[2]), nn.Tanh())

    def forward(self, z):
        return self.model(z).view(z.size(0), *self.img_shape)


class Discriminator(nn.Module):
    def __init__(self, img_shape):
        super().__init__()
        n = img_shape[0] * img_shape[1] * img_shape[2]
        self.model = nn.Sequential(nn.Linear(n, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, img):
        return self.model(img.flatten(1))


class GAN(L.LightningModule):
    def __init__(self, channels=1, width=16, height=16, latent_dim: int = 32, lr: float = 2e-4, b1: float = 0.5, b2: float = 0.999):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        shape = (channels, width, height)
        self.generator = Generator(latent_dim, shape)
        self.discriminator = Discriminator(shape)

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, y_hat, y):
        return F.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, batch):
        (imgs,) = batch
        opt_g, opt_d = self.optimizers()
        z = torch.randn(imgs.shape[0], self.hparams.latent_dim).type_as(imgs)
        real, fake = torch.ones(imgs.size(0), 1).type_as(imgs), torch.zeros(imgs.size(0), 1).type_as(imgs)

        self.toggle_optimizer(opt_g)
        g_loss = self.adversarial_loss(self.discriminator(self(z)), real)
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        opt_g.step()
        opt_g.zero_grad()
        self.untoggle_optimizer(opt_g)

        self.toggle_optimizer(opt_d)
        d_loss = (self.adversarial_loss(self.discriminator(imgs), real) + self.adversarial_loss(self.discriminator(self(z).detach()), fake)) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        opt_d.step()
        opt_d.zero_grad()
        self.untoggle_optimizer(opt_d)

    def configure_optimizers(self):
        h = self.hparams
        return [torch.optim.Adam(self.generator.parameters(), lr=h.lr, betas=(h.b1, h.b2)),
                torch.optim.Adam(self.discriminator.parameters(), lr=h.lr, betas=(h.b1, h.b2))], []


if __name__ == "__main__":
    data = DataLoader(TensorDataset(torch.rand(256, 1, 16, 16) * 2 - 1), batch_size=32, shuffle=True)
    trainer = L.Trainer(accelerator="auto", devices=1, max_epochs=4, precision="16-mixed", enable_progress_bar=False, log_every_n_steps=2)
    trainer.fit(GAN(), data)
