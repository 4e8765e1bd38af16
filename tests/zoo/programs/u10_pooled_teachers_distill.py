"""Distil a small student from three residual teachers evaluated in a thread pool."""
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PreNormTeacher(nn.Module):
    def __init__(self, seed, width=64, depth=6):
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Linear(16, width)
        self.mlps = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(),
                                                nn.Linear(4 * width, width)) for _ in range(depth))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)
        with torch.no_grad():
            for m in self.mlps:
                m[1].weight.mul_(60.0)
                m[3].weight.mul_(1500.0)

    def forward(self, x):
        h = self.stem(x)
        for m in self.mlps:
            h = h + m(h)
        return self.head(self.ln(h))


teachers = [PreNormTeacher(s).to(device).eval() for s in (1, 2, 3)]
student = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 5)).to(device)
opt = torch.optim.AdamW(student.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler(device.type, init_scale=4096.0)


def predict(teacher, x):
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.float16):
        return teacher(x).float()


torch.manual_seed(9)
pool = ThreadPoolExecutor(max_workers=3)
skipped = 0
for step in range(25):
    x = torch.randn(64, 16, device=device)
    jobs = [pool.submit(predict, t, x) for t in teachers]
    with torch.autocast(device.type, dtype=torch.float16):
        logits = student(x)
    soft = torch.stack([j.result() for j in jobs]).softmax(-1).mean(0)
    loss = F.kl_div(F.log_softmax(logits.float(), -1), soft, reduction="batchmean")
    opt.zero_grad()
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 8 == 0:
        print(step, "kl", loss.item())
pool.shutdown()
print("kl", loss.item(), "skipped", int(skipped))
