"""Gearbox fault class from vibration spectra; saved activations are packed to half until the backward pass."""
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
BINS, CLASSES, STEPS, BATCH = 64, 6, 160, 256


def pack(tensor):
    """Weights stay as they are; the larger float32 activations are kept in half."""
    if tensor.dtype == torch.float32 and tensor.numel() > 4096 and not isinstance(tensor, nn.Parameter):
        return tensor.dtype, tensor.half()
    return None, tensor


def unpack(packed):
    dtype, tensor = packed
    return tensor if dtype is None else tensor.to(dtype)


class SpectrumNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(BINS, 128)
        self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
        self.head = nn.Linear(128, CLASSES)

    def forward(self, spectrum):
        x = self.first(spectrum)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(nn.functional.silu(norm(x)))
        return self.head(x).float()


def spectra(count, lines):
    """Log spectra, standardised; each fault raises its own lines by a varying amount."""
    fault = torch.randint(0, CLASSES, (count,))
    strength = 0.4 + 0.8 * torch.rand(count, 1)
    power = 0.9 * torch.randn(count, BINS) + strength * lines[fault]
    return ((power - power.mean()) / power.std()).to(device), fault.to(device)


lines = (torch.rand(CLASSES, BINS) < 0.2).float()
train_x, train_y = spectra(8192, lines)
test_x, test_y = spectra(4096, lines)
model = SpectrumNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    rows = torch.randint(0, len(train_x), (BATCH,)).to(device)
    optimizer.zero_grad(set_to_none=True)
    with saved_tensors_hooks(pack, unpack), torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows], label_smoothing=0.05)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    logits = model(test_x)
print("metric", round(nn.functional.cross_entropy(logits, test_y).item(), 4))
