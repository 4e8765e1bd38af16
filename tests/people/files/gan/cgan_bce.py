"""Conditional GAN, sigmoid at the end of the discriminator (the classic tutorial)."""
import numpy as np
import torch
import torch.nn as nn


class Options:
    n_epochs = 2
    batch_size = 32
    lr = 0.0002
    latent_dim = 20
    n_classes = 10
    img_size = 14


opt = Options()
cuda = True
device = "cuda" if cuda else "cpu"


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label_emb = nn.Embedding(opt.n_classes, opt.n_classes)

        def block(in_feat, out_feat, normalize=True):
            layers = [nn.Linear(in_feat, out_feat)]
            if normalize:
                layers.append(nn.BatchNorm1d(out_feat, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(*block(opt.latent_dim + opt.n_classes, 64, normalize=False), *block(64, 128),
                                   nn.Linear(128, opt.img_size ** 2), nn.Tanh())

    def forward(self, noise, labels):
        gen_input = torch.cat((self.label_emb(labels), noise), -1)
        return self.model(gen_input).view(-1, 1, opt.img_size, opt.img_size)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label_embedding = nn.Embedding(opt.n_classes, opt.n_classes)
        self.model = nn.Sequential(nn.Linear(opt.n_classes + opt.img_size ** 2, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1), nn.Sigmoid())

    def forward(self, img, labels):
        return self.model(torch.cat((img.flatten(1), self.label_embedding(labels)), -1))


def main():
    adversarial_loss = nn.BCELoss()
    generator, discriminator = Generator().to(device), Discriminator().to(device)
    opt_g = torch.optim.Adam(generator.parameters(), lr=opt.lr)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=opt.lr)
    scaler_g, scaler_d = torch.cuda.amp.GradScaler(), torch.cuda.amp.GradScaler()
    images = torch.from_numpy(np.random.uniform(-1, 1, (320, 1, opt.img_size, opt.img_size)).astype("float32"))
    classes = torch.from_numpy(np.random.randint(0, opt.n_classes, 320))
    for epoch in range(opt.n_epochs):
        for i in range(0, len(images), opt.batch_size):
            real, labels = images[i:i + opt.batch_size].to(device), classes[i:i + opt.batch_size].to(device)
            valid, fake = torch.ones(len(real), 1, device=device), torch.zeros(len(real), 1, device=device)
            opt_g.zero_grad()
            with torch.cuda.amp.autocast():
                z = torch.randn(len(real), opt.latent_dim, device=device)
                gen_imgs = generator(z, labels)
                g_loss = adversarial_loss(discriminator(gen_imgs, labels), valid)
            scaler_g.scale(g_loss).backward()
            scaler_g.step(opt_g)
            scaler_g.update()
            opt_d.zero_grad()
            with torch.cuda.amp.autocast():
                d_loss = (adversarial_loss(discriminator(real, labels), valid) + adversarial_loss(discriminator(gen_imgs.detach(), labels), fake)) / 2
            scaler_d.scale(d_loss).backward()
            scaler_d.step(opt_d)
            scaler_d.update()
        print(f"[Epoch {epoch}] [D loss: {d_loss.item():.3f}] [G loss: {g_loss.item():.3f}]")


if __name__ == "__main__":
    main()
