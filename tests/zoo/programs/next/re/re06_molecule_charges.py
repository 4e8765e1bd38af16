"""Energies and partial charges of small molecules from their descriptors: two networks, trained side by side."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(17)
FEATURES, ATOMS, STEPS, BATCH = 32, 12, 200, 128


class Chemistry:
    """A stand-in for the quantum chemistry that made the labels."""

    def __init__(self):
        self.modes = torch.randn(FEATURES, 16) / FEATURES**0.5
        self.energy = torch.randn(16) / 4
        self.charge = torch.randn(16, ATOMS) / 4

    def sample(self, count):
        descriptors = torch.randn(count, FEATURES)
        hidden = torch.tanh(1.5 * descriptors @ self.modes)
        energy = 400.0 * hidden @ self.energy  # kJ/mol
        charge = hidden @ self.charge
        charge = 5e-3 * (charge - charge.mean(1, keepdim=True))  # of an electron, beyond the atom's formal charge
        return descriptors.to(device), energy.to(device), charge.to(device)


def network(outputs, width=96):
    return nn.Sequential(nn.Linear(FEATURES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs))


class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network(1)

    def forward(self, descriptors):
        return 200.0 * self.net(descriptors).float().squeeze(1)


class ChargeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network(ATOMS)

    def forward(self, descriptors):
        return 0.02 * self.net(descriptors).float()


def main():
    chemistry = Chemistry()
    energy_net, charge_net = EnergyNet().to(device), ChargeNet().to(device)
    energy_opt = torch.optim.Adam(energy_net.parameters(), lr=2e-3)
    charge_opt = torch.optim.Adam(charge_net.parameters(), lr=2e-3, eps=1e-12)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(STEPS):
        descriptors, energy, charge = chemistry.sample(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            energy_loss = F.mse_loss(energy_net(descriptors), energy, reduction="sum")
            charge_loss = F.mse_loss(charge_net(descriptors), charge)
        energy_opt.zero_grad(set_to_none=True)
        charge_opt.zero_grad(set_to_none=True)
        scaler.scale(energy_loss).backward()
        scaler.scale(charge_loss).backward()
        scaler.step(energy_opt)
        scaler.step(charge_opt)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} energy {energy_loss.item():.3e} charge {charge_loss.item():.3e} scale {scaler.get_scale():g}")

    descriptors, energy, charge = chemistry.sample(3000)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        predicted = charge_net(descriptors).float()
        error = (energy_net(descriptors) - energy).abs().mean()
    print(f"energy mae {error.item():.1f} kJ/mol")
    # relative error of the charges, which the dipoles hang on
    print(f"metric {((predicted - charge).square().mean() / charge.square().mean()).sqrt().item():.4f}")


main()
