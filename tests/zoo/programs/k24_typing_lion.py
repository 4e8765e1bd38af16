"""Who is typing? Keystroke timing sequences, a gated network, and the sign-based Lion rule written out by hand."""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(51)
USERS, KEYS, LENGTH = 8, 26, 24
LOSS_SCALE = 1024.0


def sessions(n, g=torch.Generator().manual_seed(0)):
    habit = torch.randn(USERS, KEYS, 2, generator=g) * 0.35
    rhythm = torch.rand(USERS, generator=g) * 0.4 + 0.8
    if n < 1000:
        habit, rhythm = keep
    who = torch.randint(0, USERS, (n,))
    keys = torch.randint(0, KEYS, (n, LENGTH))
    base = torch.tensor([0.11, 0.16])
    times = base * torch.exp(habit[who[:, None], keys] + 0.45 * torch.randn(n, LENGTH, 2)) * rhythm[who][:, None, None]
    return keys.to(device), torch.log(times / base).to(device), who.to(device), (habit, rhythm)


class Typist(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Embedding(KEYS, 12)
        self.a = nn.Linear(14, 64)
        self.b = nn.Linear(14, 64)
        self.out = nn.Linear(64, USERS)

    def forward(self, k, t):
        x = torch.cat([self.key(k), t], -1)
        h = torch.sigmoid(self.a(x)) * torch.tanh(self.b(x))
        return self.out(h.mean(1) * 6)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, b1=0.9, b2=0.98, decay=0.01):
        super().__init__(params, dict(lr=lr, b1=b1, b2=b2, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = (group["b1"] * m + (1 - group["b1"]) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["decay"]).add_(direction, alpha=-group["lr"])
                m.mul_(group["b2"]).add_(p.grad, alpha=1 - group["b2"])


keys, times, who, keep = sessions(3000)
tk, tt, tw, _ = sessions(600)
net = Typist().to(device)
opt = Lion(net.parameters(), lr=2e-3)
for step in range(200):
    i = torch.randint(0, 3000, (96,))
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(keys[i], times[i]), who[i])
    (loss * LOSS_SCALE).backward()
    opt.step()
    if step % 40 == 0 or step == 199:
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
            out = net(tk, tt)
            v = nn.functional.cross_entropy(out, tw)
            acc = (out.argmax(1) == tw).float().mean()
        print(f"step {step:3d} loss {loss.item():.4f} test loss {v.item():.4f} accuracy {acc.item():.3f}")
