"""Dynamic pricing policy (margin is four percent of the price), natural policy gradient: conjugate gradients on Fisher products from torch.func."""
import torch
from torch import nn
from torch.func import functional_call, jvp, vjp

device = "cuda" if torch.cuda.is_available() else "cpu"
LEVELS = torch.tensor([0.6, 0.8, 1.0, 1.2, 1.4, 1.6])


class Shop:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def visitors(self, n):
        return torch.randn(n, 8, generator=self.g).to(device)

    def sale(self, x, level):
        willing = 1.0 + 0.35 * torch.tanh(x[:, 0] + 0.5 * x[:, 1] * x[:, 2]).cpu()
        price = LEVELS[level.cpu()]
        buys = torch.rand(len(x), generator=self.g) < torch.sigmoid(8 * (willing - price))
        return (0.04 * price * buys).to(device)

    def draw(self, logits):
        return torch.multinomial(logits.float().softmax(1).cpu(), 1, generator=self.g).squeeze(1).to(device)


class Natural:
    """Keeps the search vectors in the storage type of the policy."""

    def __init__(self, policy, dtype, damping=1e-2, iters=8, kl=2e-3):
        self.policy, self.dtype, self.damping, self.iters, self.kl = policy, dtype, damping, iters, kl
        self.names = [n for n, _ in policy.named_parameters()]

    def split(self, flat):
        out, at = {}, 0
        for n, p in self.policy.named_parameters():
            out[n] = flat[at:at + p.numel()].view_as(p).float()
            at += p.numel()
        return out

    def fisher(self, x, vec):
        params = {n: p.detach() for n, p in self.policy.named_parameters()}
        f = lambda q: functional_call(self.policy, q, (x,))
        logits, tangent = jvp(f, (params,), (self.split(vec),))
        prob = logits.softmax(1)
        mid = prob * (tangent - (prob * tangent).sum(1, keepdim=True)) / len(x)
        back, = vjp(f, params)[1](mid)
        return torch.cat([back[n].flatten() for n in self.names]).to(self.dtype) + self.damping * vec

    def solve(self, x, g):
        sol = torch.zeros_like(g)
        r, p = g.clone(), g.clone()
        rr = r.dot(r)
        for _ in range(self.iters):
            ap = self.fisher(x, p)
            alpha = rr / p.dot(ap).clamp_min(torch.finfo(self.dtype).tiny)
            sol += alpha * p
            r -= alpha * ap
            fresh = r.dot(r)
            if fresh == 0:
                break
            p = r + fresh / rr * p
            rr = fresh
        return sol


torch.manual_seed(81)
shop = Shop(82)
policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 6)).to(device)
natural = Natural(policy, torch.float16)
opt = torch.optim.SGD(policy.parameters(), lr=1.0)
baseline = 0.02
for step in range(120):
    x = shop.visitors(512)
    with torch.no_grad():
        action = shop.draw(policy(x))
    gain = shop.sale(x, action)
    logp = policy(x).log_softmax(1).gather(1, action[:, None]).squeeze(1)
    objective = ((gain - baseline) * logp).mean()
    baseline = 0.9 * baseline + 0.1 * gain.mean().item()
    grads = torch.autograd.grad(objective, list(policy.parameters()))
    flat = torch.cat([g.flatten() for g in grads]).to(natural.dtype)
    way = natural.solve(x, flat).float()
    curve = way.dot(natural.fisher(x, way).float()).clamp_min(1e-20)
    way = way * (2 * natural.kl / curve).sqrt()
    for p, d in zip(policy.parameters(), natural.split(way).values()):
        p.grad = -d
    opt.step()
    if step % 20 == 0:
        print(f"step {step:3d} margin per visitor {gain.mean().item():.4f} gradient {flat.float().norm().item():.4f}")
x = shop.visitors(20000)
with torch.no_grad():
    income = shop.sale(x, shop.draw(policy(x))).mean().item()
print(f"margin per visitor after training {income:.4f}")
