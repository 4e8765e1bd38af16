"""Which label sources to trust: source weights are learned on a small clean set, the network on all sources."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"
SOURCES, CLASSES, DIM, PER_SOURCE = 8, 5, 30, 300
FLIP = torch.tensor([0.05, 0.9, 0.8, 0.1, 0.95, 0.85, 0.9, 0.8])
teacher = torch.randn(DIM, CLASSES)
confuse = torch.roll(torch.arange(CLASSES), 1)


def texts(n):
    x = torch.randn(n, DIM)
    return x, (x @ teacher + 1.0 * torch.tanh(x[:, :CLASSES] * x[:, CLASSES : 2 * CLASSES])).argmax(1)


x, y = texts(SOURCES * PER_SOURCE)
source = torch.arange(SOURCES).repeat_interleave(PER_SOURCE)
y = torch.where(torch.rand(len(y)) < FLIP[source], confuse[y], y)
train = [one.to(device) for one in (x, y, source)]
clean = [one.to(device) for one in texts(200)]
test = [one.to(device) for one in texts(3000)]

model = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(device)
trust = torch.zeros(SOURCES, device=device, requires_grad=True)
weights = list(model.parameters())
inner = torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=1e-3)
outer = torch.optim.Adam([trust], lr=0.03, betas=(0.5, 0.99))


def train_loss(batch):
    bx, by, bs = batch
    with torch.autocast("cuda", dtype=torch.bfloat16):
        each = F.cross_entropy(model(bx), by, reduction="none")
    return (torch.softmax(trust, 0)[bs] * SOURCES * each).mean()


def clean_loss():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.cross_entropy(model(clean[0]), clean[1])


@torch.no_grad()
def shift(vector, by):
    for w, v in zip(weights, vector):
        w.add_(v, alpha=by)


def trust_gradient(batch, rate, r=1e-2):
    """Gradient of the clean loss after one inner step, by central differences along its own gradient (DARTS)."""
    start = [w.detach().clone() for w in weights]
    step = torch.autograd.grad(train_loss(batch), weights)
    shift(step, -rate)
    vector = torch.autograd.grad(clean_loss(), weights)
    with torch.no_grad():
        for w, s in zip(weights, start):
            w.copy_(s)
    eps = r / torch.cat([v.flatten() for v in vector]).norm().item()
    shift(vector, eps)
    (plus,) = torch.autograd.grad(train_loss(batch), trust)
    shift(vector, -2 * eps)
    (minus,) = torch.autograd.grad(train_loss(batch), trust)
    with torch.no_grad():
        for w, s in zip(weights, start):
            w.copy_(s)
    return -rate * (plus - minus) / (2 * eps)


def error():
    with torch.no_grad():
        return (model(test[0]).argmax(1) != test[1]).float().mean().item()


for step in range(600):
    index = torch.randint(len(train[0]), (256,), device=device)
    batch = [one[index] for one in train]
    if step >= 20:
        trust.grad = trust_gradient(batch, 0.1)
        outer.step()
    loss = train_loss(batch)
    inner.zero_grad()
    loss.backward(inputs=weights)
    inner.step()
    if step % 100 == 99:
        shown = " ".join(f"{t:.2f}" for t in torch.softmax(trust, 0).tolist())
        print(f"step {step + 1}: loss {loss.item():.3f} error {error():.3f} trust {shown}")
print(f"METRIC {error():.4f}")
