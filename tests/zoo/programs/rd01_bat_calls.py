"""Bat species from ultrasound: a learned filter bank and log energies, with activations kept packed between passes."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
SPECIES, LENGTH, FILTERS, BATCH, STEPS = 6, 256, 24, 48, 90


class PackedActivations(torch.autograd.graph.saved_tensors_hooks):
    """Keep what autograd saves at half the size; it is widened again in the backward pass."""

    def __init__(self):
        def pack(tensor):
            if tensor.dtype == torch.float32 and not isinstance(tensor, nn.Parameter):
                return tensor.half(), torch.float32
            return tensor, tensor.dtype

        def unpack(packed):
            tensor, dtype = packed
            return tensor.to(dtype)

        super().__init__(pack, unpack)


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = nn.Conv1d(1, FILTERS, 32, stride=4, bias=False)
        self.mix = nn.Linear(FILTERS * 8, 48)
        self.head = nn.Linear(48, SPECIES)

    def forward(self, wave):
        bands = self.bank(wave.unsqueeze(1)).float()
        energy = F.adaptive_avg_pool1d(bands**2, 8)  # pascal squared
        level = torch.log(energy + 1e-10)
        level = level - level.mean(dim=(1, 2), keepdim=True)
        return self.head(F.relu(self.mix(level.flatten(1))))


start = 0.15 + 0.25 * torch.rand(SPECIES)
sweep = 0.12 * (torch.rand(SPECIES) - 0.5)


def recordings(n):
    """Chirps of a few millipascal at the microphone, with noise."""
    species = torch.randint(0, SPECIES, (n,))
    t = torch.arange(LENGTH) / LENGTH
    f = (start + 0.015 * torch.randn(n, SPECIES)).gather(1, species.unsqueeze(1)) + sweep[species].unsqueeze(1) * t
    phase = 6.28 * torch.cumsum(f, 1) + 6.28 * torch.rand(n, 1)
    loud = 10 ** (-3.0 + 0.5 * torch.rand(n, 1))
    envelope = torch.exp(-((t - 0.5 - 0.1 * torch.randn(n, 1)) / 0.2) ** 2)
    wave = loud * (envelope * torch.sin(phase) + 0.25 * torch.randn(n, LENGTH))
    return wave.to(device), species.to(device)


model = CallNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
for step in range(STEPS):
    wave, species = recordings(BATCH)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16), PackedActivations():
        loss = F.cross_entropy(model(wave), species)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 30 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    wave, species = recordings(1500)
    logits = model(wave)
    print(f"accuracy {(logits.argmax(1) == species).float().mean().item():.3f}")
    print(f"metric {F.cross_entropy(logits, species).item():.4f}")
