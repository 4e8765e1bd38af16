# Add-to-cart prediction from session counters (heavy tails, a few mislabelled sessions).
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(20)
device = "cuda" if torch.cuda.is_available() else "cpu"
FEATS, BATCH, STEPS = 16, 1024, 300
MISLABELLED = 0.005

direction = torch.randn(FEATS, device=device)


def sessions(n, noise):
    x = torch.distributions.StudentT(4.0).sample((n, FEATS)).to(device)
    y = torch.bernoulli(torch.sigmoid(2.0 * (x @ direction) + 1.5 * x[:, 0] * x[:, 1]))
    flip = torch.rand(n, device=device) < noise
    return x, torch.where(flip, 1 - y, y)


class CartModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATS, 1)
        self.deep = nn.Sequential(
            nn.Linear(FEATS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, x):
        return torch.sigmoid(self.linear(x) + self.deep(x)).squeeze(1)


model = CartModel().to(device)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
scaler = torch.amp.GradScaler("cuda")

seen = 0.0
for step in range(STEPS):
    x, y = sessions(BATCH, MISLABELLED)
    with torch.autocast("cuda", dtype=torch.float16):
        prob = model(x)
    loss = F.binary_cross_entropy(prob.float(), y)  # not allowed in autocast
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    seen += loss.item()
    if step % 100 == 99:
        print(f"{step + 1}: mean loss {seen / 100:.4f}")
        seen = 0.0

model.eval()
with torch.no_grad():
    x, y = sessions(20_000, 0.0)
    accuracy = ((model(x) > 0.5).float() == y).float().mean()
print(f"RESULT {accuracy.item():.4f}")
