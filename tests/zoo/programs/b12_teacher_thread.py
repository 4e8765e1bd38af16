"""Self-distillation; a background thread keeps the averaged teacher, in bf16 as it only serves targets."""
import copy
import queue
import threading

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
student = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
teacher = copy.deepcopy(student).to(torch.bfloat16).requires_grad_(False)
inbox, done = queue.Queue(), queue.Queue()


def keeper(decay=0.999):
    while (params := inbox.get()) is not None:
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), params):
                t.mul_(decay).add_(s.to(t.dtype), alpha=1 - decay)
        done.put(1)


thread = threading.Thread(target=keeper, daemon=True)
thread.start()
opt = torch.optim.Adam(student.parameters(), lr=1e-3)
w = torch.randn(16, 4)
for step in range(300):
    x = torch.randn(64, 16)
    y = (x @ w).argmax(1).to(device)
    x = x.to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            soft = teacher(x).float().softmax(-1)
        out = student(x)
        loss = F.cross_entropy(out, y) + F.cross_entropy(out, soft)
    opt.zero_grad()
    loss.backward()
    opt.step()
    inbox.put([p.detach().clone() for p in student.parameters()])
    done.get()
inbox.put(None)
print(loss.item())
