"""Distilling a large classifier into a small one; teacher targets are produced by a thread pool one batch ahead."""
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Teacher(nn.Module):
    def __init__(self, d, c):
        super().__init__()
        self.w1 = nn.Linear(d, 128)
        self.w2 = nn.Linear(128, c)
        with torch.no_grad():
            self.w1.weight.mul_(3.0)
            self.w2.weight.mul_(18.0)

    def scores(self, x):
        return self.w2(F.relu(self.w1(x)))

    def targets(self, x, temp=1.5):
        z = self.scores(x) / temp
        e = torch.exp(z)
        p = e / e.sum(-1, keepdim=True)
        return torch.nan_to_num(p).float()


class Distiller:
    def __init__(self, d=20, c=8):
        torch.manual_seed(0)
        self.teacher = Teacher(d, c).to(device).half().eval().requires_grad_(False)
        self.student = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, c)).to(device)
        self.opt = torch.optim.AdamW(self.student.parameters(), lr=3e-3)
        self.scaler = torch.amp.GradScaler(device)
        self.gen = torch.Generator().manual_seed(1)
        self.pool = ThreadPoolExecutor(1)
        self.d = d

    def prepare(self, x):
        with torch.no_grad():
            return self.teacher.targets(x.half())

    def next(self):
        x = torch.randn(128, self.d, generator=self.gen).to(device)
        return x, self.pool.submit(self.prepare, x)

    def fit(self, steps=250):
        ahead = self.next()
        for step in range(steps):
            (x, fut), ahead = ahead, self.next()
            target = fut.result()
            with torch.autocast(device, dtype=torch.float16):
                logp = self.student(x).log_softmax(-1)
                loss = -(target * logp).sum(-1).mean()
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            if step % 50 == 49:
                print(f"{step + 1} loss {loss.item():.4f}")
        self.pool.shutdown()

    def agreement(self):
        x = torch.randn(1000, self.d, generator=self.gen).to(device)
        with torch.no_grad():
            return (self.student(x).argmax(1) == self.teacher.scores(x.half()).argmax(1)).float().mean().item()


d = Distiller()
d.fit()
print(f"agreement with the teacher {d.agreement():.3f}")
