# Distilling a teacher into a half precision student by logit matching. Apex-O2 style: fp16 student, fp32 master
# copy, loss scale with back-off, gradients clipped before they are handed to the master copy.
import torch
import torch.nn as nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
half = torch.float16


class DynamicLossScale:
    def __init__(self, scale=2.0 ** 16, window=200):
        self.scale, self.window, self.good = scale, window, 0

    def update(self, overflow):
        if overflow:
            self.scale, self.good = max(self.scale / 2, 1.0), 0
        else:
            self.good += 1
            if self.good % self.window == 0:
                self.scale *= 2


class MasterWeights:
    def __init__(self, model):
        self.model = list(model.parameters())
        self.master = [p.detach().float().clone().requires_grad_() for p in self.model]

    def grads_from_model(self, scale):
        for m, p in zip(self.master, self.model):
            m.grad = p.grad.float() / scale

    @torch.no_grad()
    def to_model(self):
        for m, p in zip(self.master, self.model):
            p.copy_(m)


def classifier(width, depth, vocab=64, classes=20):
    layers = [nn.EmbeddingBag(vocab, width, mode="mean")]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


teacher = classifier(128, 1).to(device)
with torch.no_grad():
    for p in teacher.parameters():
        p.mul_(2.0)
teacher.requires_grad_(False)
student = classifier(96, 2).to(device).to(half)

MAX_NORM = 1.0
masters = MasterWeights(student)
opt = torch.optim.Adam(masters.master, lr=2e-3)
ls = DynamicLossScale()
gen = torch.Generator().manual_seed(2)

for step in range(200):
    ids = torch.randint(64, (128, 6), generator=gen).to(device)
    logits = student(ids).float()
    loss = 0.5 * (logits - teacher(ids)).pow(2).sum(-1).mean()

    for p in student.parameters():
        p.grad = None
    (loss * ls.scale).backward()
    overflow = not all(torch.isfinite(p.grad).all() for p in student.parameters())
    if not overflow:
        nn.utils.clip_grad_norm_(student.parameters(), MAX_NORM * ls.scale)
        masters.grads_from_model(ls.scale)
        opt.step()
        masters.to_model()
    ls.update(overflow)
    if step % 25 == 0 or step == 199:
        print(f"step {step:3d}  distill loss {loss.item():.4f}  scale {ls.scale:.0f}")

ids = torch.randint(64, (2000, 6), generator=gen).to(device)
agree = (student(ids).argmax(-1) == teacher(ids).argmax(-1)).float().mean()
print(f"agreement with the teacher {agree.item():.3f}")
