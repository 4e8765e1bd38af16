"""Default prediction with distributionally robust training over customer segments."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.bfloat16
SHARES = torch.tensor([0.70, 0.18, 0.08, 0.04])
ETA = 0.0036


def sample(n, g, balanced=False):
    p = torch.full((4,), 0.25) if balanced else SHARES
    seg = torch.multinomial(p, n, replacement=True, generator=g)
    x = torch.randn(n, 16, generator=g)
    base = 1.5 * x[:, 0] - x[:, 1] + 0.8 * x[:, 2] * x[:, 3]
    flip = torch.tensor([1.0, 0.6, 0.3, -1.0])[seg]
    score = base * flip + 0.7 * x[:, 4] * (seg > 1)
    y = (score + 0.3 * torch.randn(n, generator=g) > 0).long()
    return x.to(device), y.to(device), seg.to(device)


class Scorecard(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.l1 = nn.Linear(9, width)
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        return self.out(F.silu(self.l1(x[:, :9])))


class RobustLoss:
    def __init__(self, n_groups, eta, dtype):
        self.q = torch.full((n_groups,), 1.0 / n_groups, dtype=dtype, device=device)
        self.eta = eta

    def __call__(self, per_sample, seg):
        n = torch.bincount(seg, minlength=len(self.q)).clamp_min(1)
        group = torch.zeros(len(self.q), device=seg.device).index_add(0, seg, per_sample.float()) / n
        with torch.no_grad():
            self.q = self.q * torch.exp(self.eta * group).to(self.q.dtype)
            self.q = self.q / self.q.sum()
        return (self.q.float() * group).sum(), group


g = torch.Generator().manual_seed(8)
model = Scorecard().to(device)
criterion = RobustLoss(4, ETA, amp_dtype)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for it in range(300):
    x, y, seg = sample(384, g, balanced=True)
    with torch.autocast(device, dtype=amp_dtype):
        logits = model(x)
    loss, group = criterion(F.cross_entropy(logits.float(), y, reduction="none"), seg)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 60 == 0:
        print(it, "loss %.3f" % loss.item(), "weights", [round(v, 3) for v in criterion.q.tolist()])

with torch.no_grad():
    x, y, seg = sample(8000, g, balanced=True)
    hit = (model(x).argmax(1) == y).float()
    nll = F.cross_entropy(model(x), y, reduction="none")
accs = [hit[seg == k].mean().item() for k in range(4)]
worst = max(nll[seg == k].mean().item() for k in range(4))
print("accuracy by segment", [f"{a:.3f}" for a in accs], "worst segment nll %.3f" % worst)
