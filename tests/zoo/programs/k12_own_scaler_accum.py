"""Seizure detection from EEG windows. Small memory: gradients of four micro-batches are summed before each step."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)
MICRO, ACCUM = 16, 4


class LossScale:
    """keeps the loss scale as high as the gradients allow"""

    def __init__(self, start=2.0 ** 8, patience=3, top=2.0 ** 24):
        self.value, self.patience, self.top, self.calm = start, patience, top, 0

    def backward(self, loss, params):
        before = [None if p.grad is None else p.grad.clone() for p in params]
        (loss * self.value).backward()
        if all(torch.isfinite(p.grad).all() for p in params):
            self.calm += 1
            if self.calm >= self.patience:
                self.value, self.calm = min(self.value * 4, self.top), 0
            return True
        for p, b in zip(params, before):
            p.grad = b
        self.value, self.calm = max(self.value / 4, 1.0), 0
        return False

    def unscale(self, params):
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.value)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(6, 16, 7, stride=2, padding=3)
        self.conv2 = nn.Conv1d(16, 24, 5, stride=2, padding=2)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.head(x.mean(-1) * 4)


def windows(n):
    label = torch.randint(0, 3, (n,))
    t = torch.arange(96).float() / 64
    freq = torch.tensor([10.0, 3.0, 17.0])[label][:, None, None] * (1 + 0.15 * torch.randn(n, 1, 1))
    chan = torch.rand(n, 6, 1)
    x = chan * torch.sin(6.283 * freq * t + 6.283 * torch.rand(n, 1, 1)) + 0.9 * torch.randn(n, 6, 96)
    return x.to(device), label.to(device)


x, y = windows(1500)
xt, yt = windows(400)
net = Detector().to(device)
params = list(net.parameters())
opt = torch.optim.SGD(params, lr=0.15, momentum=0.9)
scale = LossScale()
for step in range(120):
    opt.zero_grad()
    seen, done = 0.0, 0
    for m in range(ACCUM):
        j = torch.randint(0, 1500, (MICRO,))
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x[j]), y[j], label_smoothing=0.05)
        done += scale.backward(loss / ACCUM, params)
        seen += loss.item() / ACCUM
    if done == 0:
        continue
    scale.unscale(params)
    opt.step()
    if step % 20 == 0 or step == 119:
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
            acc = (net(xt).argmax(1) == yt).float().mean()
        print(f"step {step:3d} loss {seen:.4f} scale {scale.value:.0f} test accuracy {acc.item():.3f}")
