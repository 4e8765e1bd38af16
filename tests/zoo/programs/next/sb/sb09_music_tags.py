"""Main instrument of short music clips from mel statistics, with an own label-smoothed loss."""
import torch
from torch import nn

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, BINS, BATCH, STEPS, SMOOTH, SHARPNESS = 10, 64, 128, 100, 0.05, 20.0

prototypes = torch.randn(CLASSES, BINS)


def clips(count):
    label = torch.randint(CLASSES, (count,))
    mel = prototypes[label] + 2.0 * torch.randn(count, BINS)
    return mel.to(device), label.to(device)


class SmoothedLoss(torch.autograd.Function):
    """Label-smoothed cross entropy; keeps the logits only and rebuilds the probabilities in the backward."""

    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        logp = logits.float().log_softmax(dim=1)
        hit = logp.gather(1, target[:, None]).squeeze(1)
        return -((1 - SMOOTH) * hit + SMOOTH * logp.mean(dim=1)).mean()

    @staticmethod
    def backward(ctx, grad_out):
        logits, target = ctx.saved_tensors
        shifted = (logits - logits.amax(dim=1, keepdim=True)).float()
        weights = shifted.exp()
        probs = weights / weights.sum(dim=1, keepdim=True)
        wanted = torch.full_like(probs, SMOOTH / CLASSES)
        wanted.scatter_add_(1, target[:, None], torch.full_like(probs[:, :1], 1 - SMOOTH))
        return (grad_out * (probs - wanted) / len(probs)).to(logits.dtype), None


class Tagger(nn.Module):
    """Cosine classifier over a small embedding."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(BINS, 96), nn.ReLU(), nn.Linear(96, 32))
        self.centres = nn.Parameter(torch.randn(CLASSES, 32))

    def forward(self, mel):
        embedding = nn.functional.normalize(self.body(mel), dim=1)
        return SHARPNESS * nn.functional.linear(embedding, nn.functional.normalize(self.centres, dim=1))


model = Tagger().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2048.0)

for step in range(STEPS):
    mel, label = clips(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(mel)
        loss = SmoothedLoss.apply(logits, label)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 25 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale()}")

mel, label = clips(8192)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    accuracy = (model(mel).argmax(1) == label).float().mean()
print(f"scale {scaler.get_scale()}")
print(f"metric {accuracy.item():.4f}")
