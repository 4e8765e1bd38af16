# Reptile on sine tasks: inner steps on a copy in compute precision, the outer optimizer moves towards the copy.
import copy
import torch, torch.nn as nn

torch.manual_seed(57)
device = "cuda" if torch.cuda.is_available() else "cpu"
INNER, INNER_LR, TASKS = 5, 2e-4, 2


def mlp():
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def task():
    amp, ph = 0.5 + 2 * torch.rand(1), 3.14 * torch.rand(1)
    return lambda x: amp * torch.sin(x + ph)


meta = mlp().to(device)
outer = torch.optim.Adam(meta.parameters(), lr=1e-3)
for it in range(120):
    outer.zero_grad()
    losses = []
    for _ in range(TASKS):
        f = task()
        fast = copy.deepcopy(meta).half()
        for k in range(INNER):
            x = 10 * torch.rand(20, 1) - 5
            loss = nn.functional.mse_loss(fast(x.to(device).half()).float(), f(x).to(device))
            grads = torch.autograd.grad(loss, list(fast.parameters()))
            with torch.no_grad():
                for p, g in zip(fast.parameters(), grads):
                    p -= INNER_LR * g
        losses.append(loss.item())
        for p, q in zip(meta.parameters(), fast.parameters()):
            d = (p.detach() - q.detach().float()) / (INNER_LR * INNER * TASKS)
            p.grad = d if p.grad is None else p.grad + d
    outer.step()
    if it % 30 == 0 or it == 119:
        print(f"meta step {it} post-adaptation loss {sum(losses) / TASKS:.4f}")
