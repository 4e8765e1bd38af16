"""Domain-incremental learning with elastic weight consolidation; importances come from layer hooks (a^2 x g^2)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)
TASKS, CLASSES, PIXELS, WIDTH, BATCH, STEPS, STRENGTH = 4, 6, 64, 96, 64, 100, 250.0

prototypes = torch.randn(CLASSES, 3, PIXELS)


def draw(n, permutation):
    label = torch.randint(CLASSES, (n,))
    style = torch.randint(3, (n,))
    image = prototypes[label, style] + 0.9 * torch.randn(n, PIXELS)
    return image[:, permutation].to(device), label.to(device)


class Importance:
    """Diagonal Fisher of the linear layers, gathered while it is switched on."""

    def __init__(self, model):
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.inputs, self.active = {}, False
        self.fisher = {m: torch.zeros_like(m.weight) for m in self.layers}
        for layer in self.layers:
            layer.register_forward_hook(self.keep_input)
            layer.register_full_backward_hook(self.gather)

    def keep_input(self, layer, inputs, output):
        self.inputs[layer] = inputs[0].detach()

    def gather(self, layer, grad_input, grad_output):
        if self.active:
            a, g = self.inputs[layer], grad_output[0]
            g2 = g.square()
            self.fisher[layer] += len(g) * (g2.float().T @ a.float().square())


model = nn.Sequential(
    nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
).to(device)
importance = Importance(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**13)
permutations = [torch.randperm(PIXELS) for _ in range(TASKS)]
train = [draw(4000, p) for p in permutations]
test = [draw(600, p) for p in permutations]
anchors = {}


def accuracy(task):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        return (model(test[task][0]).argmax(1) == test[task][1]).float().mean().item()


for task, (images, labels) in enumerate(train):
    for step in range(STEPS):
        pick = torch.randint(len(images), (BATCH,), device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(images[pick]), labels[pick])
        keep = sum((importance.fisher[m] * (m.weight - w).square()).sum() for m, w in anchors.items())
        total = loss + STRENGTH * keep
        optimizer.zero_grad()
        scaler.scale(total).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optimizer)
        scaler.update()
    anchors = {m: m.weight.detach().clone() for m in importance.layers}
    importance.active = True
    for chunk in torch.randperm(len(images), device=device).split(4000):
        with torch.autocast("cuda", dtype=torch.float16):
            log_p = F.log_softmax(model(images[chunk]), dim=1)
            drawn = torch.multinomial(log_p.exp(), 1)[:, 0]
            loss = F.nll_loss(log_p, drawn)
        model.zero_grad()
        loss.backward()
    importance.active = False
    print(f"after task {task}: " + " ".join(f"{accuracy(t):.3f}" for t in range(task + 1)))

print(f"METRIC {sum(accuracy(t) for t in range(TASKS)) / TASKS:.4f}")
