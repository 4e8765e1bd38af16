"""Click and watch-time prediction with a shared bottom; the two tasks' gradients are brought to one size there."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(8)

FIELDS, ROWS, DIM, BATCH, STEPS = 8, 60, 12, 1024, 350

# log of a video feed: thumbnails get the click, content and viewer keep them watching
effect_click = torch.randn(FIELDS, ROWS) * 0.5
effect_watch = 0.4 * effect_click + 0.5 * torch.randn(FIELDS, ROWS)
fields = torch.arange(FIELDS)


def impressions(n):
    ids = torch.randint(0, ROWS, (n, FIELDS))
    click = torch.bernoulli(torch.sigmoid(effect_click[fields, ids].sum(1) - 1))
    interest = effect_watch[fields, ids].sum(1) + 0.4 * torch.randn(n)
    seconds = 240 * torch.sigmoid(interest)
    return ids.to(device), click.to(device), seconds.to(device)


class Balance(torch.autograd.Function):
    """Hands one representation to two tasks; the second's gradient is brought to the norm of the first's."""

    @staticmethod
    def forward(ctx, h):
        return h.view_as(h), h.view_as(h)

    @staticmethod
    def backward(ctx, g_main, g_aux):
        n_main = g_main.pow(2).sum().sqrt()
        n_aux = g_aux.pow(2).sum().sqrt()
        return g_main + g_aux * (n_main / (n_aux + 1e-12))


class SharedBottom(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(FIELDS * ROWS, DIM)
        nn.init.normal_(self.emb.weight, std=0.05)
        self.register_buffer("offset", torch.arange(FIELDS) * ROWS)
        self.bottom = nn.Sequential(nn.Linear(FIELDS * DIM, 96), nn.ReLU())
        self.click = nn.Sequential(nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 1))
        self.watch = nn.Sequential(nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        h = self.bottom(self.emb(ids + self.offset).flatten(1))
        h_click, h_watch = Balance.apply(h)
        return self.click(h_click).squeeze(1), 120 + 60 * self.watch(h_watch).squeeze(1).float()


model = SharedBottom().to(device)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**13)

for step in range(STEPS):
    ids, click, seconds = impressions(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        click_logit, watch = model(ids)
        loss_click = F.binary_cross_entropy_with_logits(click_logit, click)
        loss_watch = F.mse_loss(watch, seconds)
    opt.zero_grad()
    scaler.scale(loss_click + loss_watch).backward()
    scaler.step(opt)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step:4d}  click {loss_click.item():.4f}  watch rmse {loss_watch.item() ** 0.5:.2f}")

ids, click, seconds = impressions(20000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    click_logit, watch = model(ids)
print(f"click log loss {F.binary_cross_entropy_with_logits(click_logit.float(), click).item():.4f}, watch-time RMSE in seconds:")
print(f"METRIC {(watch - seconds).pow(2).mean().sqrt().item():.3f}")
