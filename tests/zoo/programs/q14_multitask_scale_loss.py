"""Two-task tabular model (churn + spend) with an apex-like scale_loss context."""
from contextlib import contextmanager

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 5
STEPS = 240
BATCH = 128


class DynamicScale:
    def __init__(self, init=2.0 ** 14, window=500):
        self.value = init
        self.window = window
        self.clean = 0
        self.overflow = False

    @contextmanager
    def scale_loss(self, loss, optimizer):
        yield loss * self.value
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.grad.mul_(1.0 / self.value)
                if not torch.isfinite(p.grad).all():
                    self.overflow = True

    def step(self, optimizer):
        if self.overflow:
            self.value /= 2.0
            self.clean = 0
        else:
            optimizer.step()
            self.clean += 1
            if self.clean == self.window:
                self.value *= 2.0
                self.clean = 0
        self.overflow = False


class TwoTask(nn.Module):
    def __init__(self, d_in, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d_in, width), nn.LayerNorm(width), nn.GELU(),
                                   nn.Linear(width, width), nn.GELU())
        self.churn = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 1))
        self.spend = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        h = self.trunk(x)
        return self.churn(h).squeeze(1), self.spend(h).squeeze(1)


def make_data(n, w_churn, w_spend):
    x = torch.randn(n, 20)
    churn = ((x @ w_churn) * 1.5 + 0.5 * torch.randn(n) > 0).float()
    spend = torch.tanh(x @ w_spend) + 0.3 * (x[:, 0] * x[:, 1]) + 0.1 * torch.randn(n)
    return x, churn, spend


torch.manual_seed(SEED)
w_churn, w_spend = torch.randn(20) / 3, torch.randn(20) / 3
train = make_data(6000, w_churn, w_spend)
val_x, val_churn, val_spend = make_data(1500, w_churn, w_spend)

model = TwoTask(20).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
amp = DynamicScale()

for step in range(STEPS):
    idx = torch.randint(0, len(train[0]), (BATCH,))
    x, churn, spend = (t[idx].to(device) for t in train)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        churn_logit, spend_pred = model(x)
        churn_loss = F.binary_cross_entropy_with_logits(churn_logit, churn)
        spend_loss = F.mse_loss(spend_pred, spend)
    with amp.scale_loss(churn_loss, optimizer) as scaled:
        scaled.backward(retain_graph=True)
    with amp.scale_loss(spend_loss, optimizer) as scaled:
        scaled.backward()
    amp.step(optimizer)
    if step % 40 == 0:
        total = churn_loss.item() + spend_loss.item()
        print(f"step {step:3d}  loss {total:.4f}  scale {amp.value:.0f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    churn_logit, spend_pred = model(val_x.to(device))
acc = ((churn_logit.float().cpu() > 0).float() == val_churn).float().mean().item()
mse = F.mse_loss(spend_pred.float().cpu(), val_spend).item()
print(f"val churn accuracy {acc:.3f}  spend mse {mse:.4f}")
