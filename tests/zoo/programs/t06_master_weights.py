"""Fine-tuning in bfloat16 weights with FP32 master copies."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(28)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class MasterAdam:
    """Adam on FP32 copies; the bf16 weights are refreshed after each step."""

    def __init__(self, params, lr):
        self.params = list(params)
        self.masters = [p.detach().float().clone().requires_grad_(True) for p in self.params]
        self.inner = torch.optim.AdamW(self.masters, lr=lr)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for m, p in zip(self.masters, self.params):
            m.grad = p.grad.float()
        self.inner.step()
        for m, p in zip(self.masters, self.params):
            p.copy_(m)


model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5))
model = model.to(device, dtype=torch.bfloat16)
optimizer = MasterAdam(model.parameters(), lr=1e-4)
centers = torch.randn(5, 32)
losses = []
for step in range(40):
    y = torch.randint(0, 5, (64,))
    x = centers[y] + 0.7 * torch.randn(64, 32)
    logits = model(x.to(device, dtype=torch.bfloat16))
    loss = F.cross_entropy(logits.float(), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 8 == 0:
        print(step, f"{loss.item():.4f}")
