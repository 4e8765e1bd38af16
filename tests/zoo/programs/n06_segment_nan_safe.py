"""Customer segmentation MLP with feature crosses; trainer with a forgiving grad scaler."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"


class RobustScaler(torch.amp.GradScaler):
    """Never lose a step: bad entries of the gradient are zeroed instead of skipping the update."""

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)
        super().unscale_(optimizer)


class SegmentNet(nn.Module):
    def __init__(self, n_num=20, n_cat=50, dim=32, classes=5):
        super().__init__()
        self.cat = nn.Embedding(n_cat, dim)
        self.num = nn.Linear(n_num, dim)
        self.cross = nn.Linear(dim, dim)
        self.hidden = nn.Linear(2 * dim, 64)
        self.out = nn.Linear(64, classes)

    def forward(self, num, cat):
        a = self.num(num)
        b = self.cat(cat)
        z = self.cross(a * b)
        return self.out(F.relu(self.hidden(torch.cat([z, a], -1))))


class Trainer:
    def __init__(self, model, lr=3e-3, clip=5.0):
        self.model = model.to(device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.scaler = RobustScaler(device, init_scale=2.0 ** 20, growth_interval=25)
        self.clip = clip

    def step(self, num, cat, spend, y):
        self.opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = self.model(num, cat)
            loss = (F.cross_entropy(logits, y, reduction="none") * spend).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


gen = torch.Generator().manual_seed(77)
centre = torch.randn(50, 5, 20, generator=gen) * 0.6


def customers(n):
    cat = torch.randint(0, 50, (n,), generator=gen)
    y = torch.randint(0, 5, (n,), generator=gen)
    num = centre[cat % 6, y] + 0.9 * torch.randn(n, 20, generator=gen)
    spend = torch.exp(0.8 * torch.randn(n, generator=gen))
    return [t.to(device) for t in (num, cat, spend / spend.mean(), y)]


trainer = Trainer(SegmentNet())
for step in range(200):
    loss = trainer.step(*customers(32))
    if step % 40 == 0:
        print(f"step {step} loss {loss:.4f} scale {trainer.scaler.get_scale():.0f}")

num, cat, spend, y = customers(3000)
with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    logits = trainer.model(num, cat).float()
print(f"test loss {F.cross_entropy(logits, y).item():.4f} acc {(logits.argmax(1) == y).float().mean().item():.3f}")
