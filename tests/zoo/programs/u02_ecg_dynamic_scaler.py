"""ECG arrhythmia detector with its own little loss-scaler."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class DynamicScale:
    def __init__(self, start=2.0 ** 15, every=6, factor=2.0):
        self.value, self.every, self.factor, self.good = start, every, factor, 0

    def backward(self, loss):
        (loss * self.value).backward()

    def apply(self, optimizer, loss):
        if not torch.isfinite(loss * self.value):
            self.value /= self.factor
            self.good = 0
            return False
        for g in optimizer.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.grad /= self.value
        optimizer.step()
        self.good += 1
        if self.good % self.every == 0:
            self.value *= self.factor
        return True


class ECGNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(1, 16, 7, 2, 3)
        self.c2 = nn.Conv1d(16, 32, 5, 2, 2)
        self.c3 = nn.Conv1d(32, 32, 5, 2, 2)
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        for c in (self.c1, self.c2, self.c3):
            x = F.gelu(c(x))
        return self.fc(x.amax(-1))


def beats(n):
    y = torch.randint(0, 4, (n,))
    t = torch.linspace(-3, 3, 128)
    w = 0.15 + 0.12 * y.float()[:, None]
    x = torch.exp(-(t / w) ** 2) * 3 + 0.1 * torch.randn(n, 128)
    return x[:, None].to(device), y.to(device)


net = ECGNet().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
scale = DynamicScale()
curve, scales = [], []
for i in range(70):
    x, y = beats(32)
    with torch.autocast(device_type=device.type, dtype=torch.float16):
        logits = net(x)
        loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    scale.backward(loss)
    scale.apply(opt, loss)
    curve.append(loss.item())
    scales.append(scale.value)
print("loss", curve[0], curve[-1], "scale", scales[-1])
