"""Age from brain-region volumes of three scanners; an adversary keeps the scanner out of the shared features."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(29)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.bfloat16
REGIONS, SITES, BATCH, EPOCHS, PER_EPOCH = 24, 3, 96, 4, 60

atrophy = torch.randn(REGIONS) / REGIONS**0.5
site_offset = 0.8 * torch.randn(SITES, REGIONS)


def subjects(n):
    age, site = torch.randn(n), torch.randint(0, SITES, (n,))
    volume = -age[:, None] * atrophy * 2 - 0.4 * age[:, None].square() * atrophy.roll(3)
    volume = volume + site_offset[site] + 0.15 * torch.randn(n, REGIONS)
    return volume.to(device), age.to(device), site.to(device)


encoder = nn.Sequential(nn.Linear(REGIONS, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()).to(device)
regressor = nn.Linear(32, 1).to(device)
adversary = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, SITES)).to(device)
opt_main = torch.optim.Adam([*encoder.parameters(), *regressor.parameters()], lr=2e-3)
opt_adv = torch.optim.Adam(adversary.parameters(), lr=2e-3)


def train_epoch():
    total = 0.0
    for _ in range(PER_EPOCH):
        volume, age, site = subjects(BATCH)

        # the adversary guesses the scanner
        adv_loss = F.cross_entropy(adversary(encoder(volume).detach()), site)
        opt_adv.zero_grad(set_to_none=True)
        adv_loss.backward()
        opt_adv.step()

        # the encoder serves the regressor and confuses the adversary
        feature = encoder(volume)
        confusion = -F.log_softmax(adversary(feature), dim=1).mean()
        age_loss = F.mse_loss(regressor(feature).squeeze(-1), age)
        opt_main.zero_grad(set_to_none=True)
        (age_loss + 0.02 * confusion).backward()
        opt_main.step()
        total += age_loss.item()
    return total / PER_EPOCH


for epoch in range(EPOCHS):
    with torch.autocast("cuda", dtype=amp_dtype):
        age_loss = train_epoch()
    print(f"epoch {epoch + 1} age loss {age_loss:.4f}")

volume, age, site = subjects(4096)
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    pred = regressor(encoder(volume)).squeeze(-1)
print(f"metric {(pred.float() - age).pow(2).mean().sqrt().item():.4f}")
