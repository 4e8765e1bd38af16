"""Task-incremental sensor classifier with A-GEM: the step must not point against the gradient on remembered cases."""
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(31)
random.seed(31)
FEAT, CLASSES, TASKS, STEPS = 20, 4, 3, 60


def make_task():
    proto = torch.randn(CLASSES, FEAT)
    y = torch.randint(0, CLASSES, (800,))
    return (proto[y] + 0.8 * torch.randn(800, FEAT)).to(device), y.to(device)


tasks = [make_task() for _ in range(TASKS)]
model = nn.Sequential(nn.Linear(FEAT, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES)).to(device)
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler(device, init_scale=4096.0)
memory_x, memory_y = [], []
projected = 0


def logits_of(x):
    with torch.autocast(device_type=device, dtype=torch.float16):
        return model(x).float()


def flat(grads):
    return torch.cat([g.reshape(-1) for g in grads])


for t, (x, y) in enumerate(tasks):
    for step in range(STEPS):
        idx = torch.randint(0, len(x), (48,))
        loss = F.cross_entropy(logits_of(x[idx]), y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        if memory_x:
            mx, my = torch.cat(memory_x), torch.cat(memory_y)
            pick = torch.randint(0, len(mx), (48,))
            ref = flat(torch.autograd.grad(F.cross_entropy(logits_of(mx[pick]), my[pick]), params))
            g = flat([p.grad for p in params])
            along = torch.dot(g, ref)
            if along < 0:
                projected += 1
                g = g - along / torch.dot(ref, ref) * ref
                at = 0
                for p in params:
                    p.grad.copy_(g[at:at + p.numel()].view_as(p))
                    at += p.numel()
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0:
            print(f"task {t} step {step:2d} loss {loss.item():.4f}")
    memory_x.append(x[:64])
    memory_y.append(y[:64])
    with torch.no_grad():
        acc = [(logits_of(a).argmax(-1) == b).float().mean().item() for a, b in tasks[:t + 1]]
    print(f"after task {t}: " + " ".join(f"{v:.3f}" for v in acc) + f"  projected {projected}")
