# Model-agnostic meta learning for load curves of households (few observed hours -> rest of the day).
# Second order, inner steps differentiated with the scaled loss.
import torch
import torch.nn.functional as F

torch.manual_seed(19)
DEV = "cuda" if torch.cuda.is_available() else "cpu"


def init_params(sizes, gen):
    params = []
    for i, o in zip(sizes[:-1], sizes[1:]):
        params.append((torch.randn(o, i, generator=gen) / i ** 0.5).to(DEV).requires_grad_())
        params.append(torch.zeros(o, device=DEV, requires_grad=True))
    return params


def net(params, x):
    h = x
    for i in range(0, len(params) - 2, 2):
        h = torch.tanh(F.linear(h, params[i], params[i + 1]))
    return F.linear(h, params[-2], params[-1]).squeeze(-1)


def household(gen, shots=10, queries=24):
    peak = 0.5 + torch.rand(1, generator=gen)
    phase = 6.28 * torch.rand(1, generator=gen)
    base = 0.3 * torch.randn(1, generator=gen)

    def draw(n):
        hour = torch.rand(n, generator=gen) * 6.28
        load = base + peak * torch.sin(hour + phase)
        feats = torch.stack([torch.sin(hour), torch.cos(hour), torch.sin(2 * hour), torch.cos(2 * hour)], 1)
        return feats.to(DEV), load.to(DEV)

    return draw(shots), draw(queries)


class MetaLearner:
    def __init__(self, inner_lr=0.08, inner_steps=2):
        self.gen = torch.Generator().manual_seed(7)
        self.params = init_params([4, 40, 40, 1], self.gen)
        self.opt = torch.optim.Adam(self.params, lr=2e-3)
        self.scaler = torch.amp.GradScaler(DEV, init_scale=2.0 ** 12)
        self.inner_lr, self.inner_steps = inner_lr, inner_steps

    def inner(self, x, y):
        fast = self.params
        inv = 1.0 / self.scaler.get_scale()
        for _ in range(self.inner_steps):
            with torch.autocast(DEV, dtype=torch.float16):
                loss = F.mse_loss(net(fast, x), y)
            scaled = torch.autograd.grad(self.scaler.scale(loss), fast, create_graph=True)
            fast = [p - self.inner_lr * (g * inv) for p, g in zip(fast, scaled)]
        return fast

    def meta_step(self, tasks=3):
        self.opt.zero_grad()
        total = 0.0
        for _ in range(tasks):
            (xs, ys), (xq, yq) = household(self.gen)
            fast = self.inner(xs, ys)
            with torch.autocast(DEV, dtype=torch.float16):
                loss = F.mse_loss(net(fast, xq), yq) / tasks
            self.scaler.scale(loss).backward()
            total += loss.item()
        self.scaler.step(self.opt)
        self.scaler.update()
        return total


learner = MetaLearner()
recent = []
for it in range(1, 121):
    recent.append(learner.meta_step())
    if it % 40 == 0:
        print(f"meta step {it}: query mse {sum(recent[-40:]) / 40:.4f} scale {learner.scaler.get_scale():g}")
