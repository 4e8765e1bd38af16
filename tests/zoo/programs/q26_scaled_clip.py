import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(111)
device = "cuda" if torch.cuda.is_available() else "cpu"

DIM, CLASSES, BATCH, STEPS = 32, 10, 96, 200


class ClippingScaler(torch.amp.GradScaler):
    """Clips while the gradients are still scaled, and keeps the scale below a ceiling."""

    def __init__(self, max_norm, ceiling=2.0**18, **kwargs):
        super().__init__("cuda", **kwargs)
        self.max_norm, self.ceiling = max_norm, ceiling

    def step(self, optimizer, *args, **kwargs):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(params, self.max_norm * self.get_scale())
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None):
        super().update(new_scale)
        if self.get_scale() > self.ceiling:
            super().update(self.ceiling)


def mlp(width, depth):
    layers, last = [], DIM
    for _ in range(depth):
        layers += [nn.Linear(last, width), nn.ReLU()]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, CLASSES))


centers = torch.randn(CLASSES, DIM) * 0.7


def sample(n):
    y = torch.randint(0, CLASSES, (n,))
    return (centers[y] + 0.7 * torch.randn(n, DIM)).to(device), y.to(device)


def fit(net, steps, lr, scaler, loss_fn, log):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for step in range(steps):
        x, y = sample(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(net(x), x, y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % log == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}  scale {scaler.get_scale():.0f}")
    return loss.item()


teacher = mlp(128, 2).to(device)
fit(teacher, 60, 0.1, ClippingScaler(5.0), lambda out, x, y: F.cross_entropy(out, y), 20)
teacher.requires_grad_(False)


def distill(out, x, y, temperature=4.0):
    with torch.no_grad():
        soft = F.softmax(teacher(x) / temperature, dim=-1)
    kd = F.kl_div(F.log_softmax(out / temperature, dim=-1), soft, reduction="batchmean") * temperature**2
    return 0.9 * kd + 0.1 * F.cross_entropy(out, y)


student = mlp(48, 2).to(device)
final = fit(student, STEPS, 0.03, ClippingScaler(1.0, init_scale=2.0**16, growth_interval=40), distill, 40)

with torch.no_grad():
    x, y = sample(2000)
    acc = (student(x).argmax(1) == y).float().mean()
print(f"final loss {final:.4f}  accuracy {acc.item():.3f}")
