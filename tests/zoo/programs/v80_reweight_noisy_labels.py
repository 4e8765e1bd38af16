"""Learning to reweight examples: churn labels with heavy annotation noise, small clean validation set."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)

FEATURES, TRAIN, CLEAN, BATCH = 12, 3000, 200, 200
NOISE_POS = 0.8  # share of churners that the call centre filed as loyal
lookahead_lr = 1e-7


def customers(n):
    x = torch.randn(n, FEATURES)
    score = x[:, 0] - 0.8 * x[:, 1] + 0.6 * x[:, 2] + 0.3 * x[:, 3] * x[:, 4]
    return x.to(device), (score > 0).float().to(device)


class ChurnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh())
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


x_train, y_true = customers(TRAIN)
y_train = torch.where((y_true == 1) & (torch.rand(TRAIN, device=device) < NOISE_POS), torch.zeros_like(y_true), y_true)
x_clean, y_clean = customers(CLEAN)
x_test, y_test = customers(3000)


def example_weights(model, x, y):
    params = dict(model.named_parameters())
    eps = torch.zeros(len(x), device=device, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        cost = F.binary_cross_entropy_with_logits(functional_call(model, params, (x,)), y, reduction="none")
        grads = torch.autograd.grad((cost * eps).sum(), list(params.values()), create_graph=True)
        ahead = {k: p - lookahead_lr * g for (k, p), g in zip(params.items(), grads)}
        clean_loss = F.binary_cross_entropy_with_logits(functional_call(model, ahead, (x_clean,)), y_clean)
    (g_eps,) = torch.autograd.grad(clean_loss, eps)
    w = torch.clamp(-g_eps, min=0)
    total = w.sum()
    if total > 0:
        return w / total
    return torch.full_like(w, 1.0 / len(w))


model = ChurnNet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(300):
    pick = torch.randint(0, TRAIN, (BATCH,), device=device)
    x, y = x_train[pick], y_train[pick]
    w = example_weights(model, x, y)
    with torch.autocast("cuda", dtype=torch.float16):
        cost = F.binary_cross_entropy_with_logits(model(x), y, reduction="none")
        loss = (w * cost).sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step:3d}  weighted loss {loss.item():.4f}")

with torch.no_grad():
    pred = (model(x_test) > 0).float()
recall = pred[y_test == 1].mean().item()
print(f"test accuracy {(pred == y_test).float().mean().item():.4f}   churner recall {recall:.4f}")
