# Demand model with 16-bit weights and float masters for the optimiser.
# Matrices: Adam on the masters. Biases and offsets: plain SGD with a larger rate.
import torch
import torch.nn as nn

torch.manual_seed(37)
device = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16
LOSS_SCALE = 256.0


class Demand(nn.Module):
    def __init__(self, n_in=16, n_store=12):
        super().__init__()
        self.l1 = nn.Linear(n_in, 64)
        self.l2 = nn.Linear(64, n_store)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x)))


class Masters:
    """Float copies of the 16-bit weights (or the weights themselves if they are float already)."""

    def __init__(self, module):
        self.pairs = []
        for p in module.parameters():
            m = p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            self.pairs.append((p, m))

    def take_grads(self, scale):
        for p, m in self.pairs:
            if m is not p:
                m.grad = p.grad.float() / scale
                p.grad.div_(scale)
            else:
                p.grad.div_(scale)

    @torch.no_grad()
    def publish(self):
        for p, m in self.pairs:
            p.copy_(m)


model = Demand().to(device).to(DTYPE)
masters = Masters(model)
adam = torch.optim.Adam([m for p, m in masters.pairs if p.ndim > 1], lr=2e-3)
sgd = torch.optim.SGD([p for p in model.parameters() if p.ndim == 1], lr=0.2)

W = torch.randn(16, 12) / 4
level = 2 + 3 * torch.rand(12)
curve = []
for step in range(200):
    x = torch.randn(128, 16)
    y = (torch.relu(x @ W) + level + 0.1 * torch.randn(128, 12)).to(device)
    out = model(x.to(device, DTYPE))
    loss = nn.functional.mse_loss(out.float(), y)
    model.zero_grad()
    (loss * LOSS_SCALE).backward()
    masters.take_grads(LOSS_SCALE)
    adam.step()
    sgd.step()
    masters.publish()
    curve.append(loss.item())
    if step % 40 == 0:
        print(step, round(loss.item(), 4))
print(f"FINAL loss={sum(curve[-20:]) / 20:.4f}")
