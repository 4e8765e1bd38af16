import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"


class LossScaler:
    """Dynamic loss scaling for our trainer, keeps the fp32 grads in place."""

    def __init__(self, params, init_scale=2.0 ** 16, growth_every=200):
        self.params = [p for p in params if p.requires_grad]
        self.scale = init_scale
        self.growth_every = growth_every
        self.good_steps = 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def unscale(self):
        inv = 1.0 / self.scale
        finite = True
        for p in self.params:
            if p.grad is None:
                continue
            p.grad.mul_(inv)
            finite = finite and bool(torch.isfinite(p.grad).all())
        return finite

    def update(self, finite):
        if not finite:
            self.scale /= 2.0
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps % self.growth_every == 0:
            self.scale *= 2.0


class SharedNet(nn.Module):
    def __init__(self, n_in=24, width=64, n_cls=5):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.category = nn.Linear(width, n_cls)
        self.delay = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.category(h), self.delay(h).squeeze(-1)


class UncertaintyLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, logits, delay, y_cat, y_delay):
        losses = torch.stack([F.cross_entropy(logits, y_cat), F.mse_loss(delay, y_delay)])
        return (torch.exp(-self.log_vars) * losses + 0.5 * self.log_vars).sum(), losses.detach()


x_all = torch.randn(2048, 24)
w_cat = torch.randn(24, 5)
w_del = torch.randn(24) / 5
y_cat_all = (x_all @ w_cat).argmax(1)
y_del_all = torch.tanh(x_all @ w_del) + 0.1 * torch.randn(2048)

model = SharedNet().to(device)
criterion = UncertaintyLoss().to(device)
optimizer = torch.optim.SGD(
    [{"params": model.parameters(), "lr": 0.1}, {"params": criterion.parameters(), "lr": 0.002}], momentum=0.9
)
trainable = list(model.parameters()) + list(criterion.parameters())
scaler = LossScaler(model.parameters())

for step in range(200):
    idx = torch.randint(0, 2048, (64,))
    x, yc, yd = x_all[idx].to(device), y_cat_all[idx].to(device), y_del_all[idx].to(device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        logits, delay = model(x)
        loss, parts = criterion(logits, delay, yc, yd)
    scaler.backward(loss)
    finite = scaler.unscale()
    if finite:
        nn.utils.clip_grad_norm_(trainable, 2.0)
        optimizer.step()
    scaler.update(finite)
    if step % 40 == 0 or step == 199:
        print(f"step {step:3d} loss {loss.item():.4f} cat {parts[0].item():.4f} delay {parts[1].item():.4f}")
