"""One trunk, two feeds: organic impressions (click or not) and sponsored slates (revenue of each slate).

Sponsored slates are rarer, so one batch in five is taken from them; the others are organic.
"""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)

STEPS = 320
SPONSORED_EVERY = 5
BATCH = 192
FEATURES = 20


class Feed:
    def __init__(self, n, click, revenue):
        self.x = torch.randn(n, FEATURES, device=device)
        self.click = (torch.rand(n, device=device) < torch.sigmoid(1.5 * torch.tanh(self.x @ click[0]) + self.x @ click[1]))
        self.click = self.click.float()
        noise = 0.3 * torch.randn(n, device=device)
        self.revenue = 12 + 6 * torch.tanh(self.x @ revenue[0]) + 3 * (self.x @ revenue[1]) + noise

    def batch(self, size):
        rows = torch.randint(0, len(self.x), (size,), device=device)
        return self.x[rows], self.click[rows], self.revenue[rows]


class SharedBottom(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(FEATURES, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.click_head = nn.Sequential(nn.Linear(hidden, 16), nn.SiLU(), nn.Linear(16, 1))
        self.revenue_head = nn.Sequential(nn.Linear(hidden, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, x, head):
        z = self.bottom(x)
        return (self.click_head(z) if head == "click" else self.revenue_head(z)).squeeze(-1)


click = torch.randn(2, FEATURES, device=device) * 0.3
revenue = torch.randn(2, FEATURES, device=device) * 0.3
train, held_out = Feed(12000, click, revenue), Feed(2000, click, revenue)

model = SharedBottom().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=4e-4)
scaler = torch.amp.GradScaler("cuda", growth_interval=4)
bce = nn.BCEWithLogitsLoss()
mse = nn.MSELoss(reduction="sum")  # slates are charged in sum


@torch.no_grad()
def report():
    model.eval()
    with torch.autocast("cuda", dtype=torch.float16):
        p = model(held_out.x, "click").float()
        r = model(held_out.x, "revenue").float()
    model.train()
    accuracy = ((p > 0).float() == held_out.click).float().mean().item()
    unexplained = ((r - held_out.revenue) ** 2).mean().item() / held_out.revenue.var().item()
    return accuracy, unexplained


history = {"click": [], "revenue": []}
for step in range(STEPS):
    sponsored = step % SPONSORED_EVERY == SPONSORED_EVERY - 1
    x, clicked, earned = train.batch(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        if sponsored:
            loss = mse(model(x, "revenue"), earned)
            history["revenue"].append(loss.item() / BATCH)
        else:
            loss = bce(model(x, "click"), clicked)
            history["click"].append(loss.item())
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    if (step + 1) % 80 == 0:
        accuracy, unexplained = report()
        mean = sum(history["click"][-60:]) / 60
        print(f"step {step + 1}: click loss {mean:.4f} accuracy {accuracy:.4f} revenue unexplained {unexplained:.4f}")

print(f"final metric: {report()[1]:.4f}")
