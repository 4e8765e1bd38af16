"""Which push messages to send: clicks are maximised under a limit on the share sent (primal-dual training)."""
import torch
import torch.nn as nn

torch.manual_seed(14)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.bfloat16

FEATURES, BATCH, STEPS = 20, 256, 700
LIMIT = 0.12  # share of the messages that may be sent
DUAL_LR = 0.01


class World:
    """Users with features, and what a message to each is worth (in expected visits)."""

    def __init__(self):
        self.taste = torch.randn(FEATURES, 6) / FEATURES**0.5

    def sample(self, n):
        x = torch.randn(n, FEATURES)
        hidden = torch.tanh(x @ self.taste)
        worth = 1.6 + 1.1 * hidden[:, 0] + 0.8 * hidden[:, 1] * hidden[:, 2] + 0.6 * hidden[:, 3].abs()
        worth = worth + 0.2 * torch.randn(n)
        return x.to(device), worth.to(device)


class Sender(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.gate = nn.Linear(width, 1)

    def forward(self, x):
        return torch.sigmoid(self.gate(self.body(x))).squeeze(1)


world = World()
model = Sender().to(device)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
price = torch.zeros((), device=device, dtype=amp_dtype)  # Lagrange multiplier of the limit

for step in range(STEPS):
    x, worth = world.sample(BATCH)
    with torch.autocast("cuda", dtype=amp_dtype):
        send = model(x)
        visits = (send * worth).mean()
        excess = send.mean() - LIMIT
        entropy = -(send * torch.log(send + 1e-4) + (1 - send) * torch.log(1 - send + 1e-4)).mean()
        loss = -visits + price * excess - 0.05 * entropy
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    with torch.no_grad():  # dual ascent
        price = (price + DUAL_LR * excess.detach()).clamp(min=0)
    if step % 100 == 0:
        print(f"step {step} sent {send.mean().item():.3f} price {price.item():.3f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    x, worth = world.sample(8000)
    share = model(x).float().mean()
print(f"price {price.item():.4f} share sent {share.item():.4f}")
print(f"metric {abs(share.item() - LIMIT):.4f}")
