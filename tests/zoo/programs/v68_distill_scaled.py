"""Distils a wide tabular teacher into a small student; the loss scale is our own."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, CLASSES, TEMPERATURE = 20, 12, 2.0


class LossScale:
    def __init__(self, value=2.0**15, window=5):
        self.value, self.window, self.good = value, window, 0

    def overflowed(self, parameters):
        return any(not torch.isfinite(p.grad).all() for p in parameters if p.grad is not None)

    def backoff(self):
        self.value, self.good = max(self.value / 2, 1.0), 0

    def grow(self):
        self.good += 1
        if self.good % self.window == 0:
            self.value *= 2


class Student(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.fc1 = nn.Linear(FEATURES, width)
        self.fc2 = nn.Linear(width, width)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = F.silu(self.fc1(self.norm(x)))
        return self.out(F.silu(self.fc2(x)))


def make_teacher():
    net = nn.Sequential(nn.Linear(FEATURES, 128), nn.Tanh(), nn.Linear(128, CLASSES))
    for p in net.parameters():
        p.data.mul_(3.0)
    return net.to(device).eval().requires_grad_(False)


def distillation_loss(student_logits, teacher_logits):
    log_q = F.log_softmax(student_logits / TEMPERATURE, dim=-1)
    p = F.softmax(teacher_logits / TEMPERATURE, dim=-1)
    return F.kl_div(log_q, p, reduction="batchmean") * TEMPERATURE**2


def train(student, teacher, steps=80, size=128, lr=4e-3):
    parameters = list(student.parameters())
    optimizer = torch.optim.Adam(parameters, lr=lr)
    scale = LossScale()
    applied = 0
    for step in range(steps):
        x = torch.randn(size, FEATURES, device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = distillation_loss(student(x), teacher(x))
        (loss * scale.value).backward()
        if scale.overflowed(parameters):
            scale.backoff()
            continue
        for p in parameters:
            p.grad.div_(scale.value)
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        optimizer.zero_grad()
        scale.grow()
        applied += 1
        if applied % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    return applied


@torch.no_grad()
def agreement(student, teacher):
    x = torch.randn(4000, FEATURES, device=device)
    loss = distillation_loss(student(x), teacher(x)).item()
    return loss, (student(x).argmax(-1) == teacher(x).argmax(-1)).float().mean().item()


def main():
    torch.manual_seed(0)
    teacher = make_teacher()
    student = Student().to(device)
    applied = train(student, teacher)
    loss, agree = agreement(student, teacher)
    print(f"updates {applied}, loss {loss:.4f}, agreement {agree:.3f}")


if __name__ == "__main__":
    main()
