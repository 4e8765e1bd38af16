"""Mean teacher in bf16; the teacher's weights stay in FP32."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
student = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).to(device)
teacher = copy.deepcopy(student).requires_grad_(False)
opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
w = torch.randn(20, 5)
for step in range(150):
    x = torch.randn(64, 20)
    y = (x @ w).argmax(1).to(device)
    x = x.to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = student(x)
        with torch.no_grad():
            target = teacher(x + 0.05 * torch.randn_like(x)).softmax(-1)
        loss = F.cross_entropy(out, y) + 0.5 * F.kl_div(out.log_softmax(-1), target, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, b in zip(teacher.parameters(), student.parameters()):
            a.mul_(0.999).add_(b, alpha=0.001)
print(loss.item())
