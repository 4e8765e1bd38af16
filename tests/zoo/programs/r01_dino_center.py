"""Self-distillation (DINO-like) on synthetic views."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class DINOLoss(nn.Module):
    def __init__(self, out_dim, center_momentum=0.9998, tau_s=0.1, tau_t=0.06):
        super().__init__()
        self.m, self.tau_s, self.tau_t = center_momentum, tau_s, tau_t
        self.register_buffer("center", torch.full((1, out_dim), 0.5, dtype=torch.float16))

    def forward(self, s, t):
        q = F.softmax((t.detach() - self.center) / self.tau_t, dim=-1)
        loss = -(q * F.log_softmax(s / self.tau_s, dim=-1)).sum(-1).mean()
        self.update(t)
        return loss

    @torch.no_grad()
    def update(self, t):
        batch_center = t.mean(0, keepdim=True)
        self.center.mul_(self.m).add_(batch_center.to(self.center.dtype) * (1 - self.m))


student = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)).to(device)
teacher = copy.deepcopy(student).requires_grad_(False)
crit = DINOLoss(32).to(device)
opt = torch.optim.AdamW(student.parameters(), lr=5e-4)
scaler = torch.amp.GradScaler(device)
base = torch.randn(512, 64)

for step in range(120):
    idx = torch.randint(0, 512, (64,))
    v1 = (base[idx] + 0.2 * torch.randn(64, 64)).to(device)
    v2 = (base[idx] + 0.2 * torch.randn(64, 64)).to(device)
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.float16):
        loss = crit(student(v1), teacher(v2))
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    with torch.no_grad():
        for ps, pt in zip(student.parameters(), teacher.parameters()):
            pt.mul_(0.99).add_(ps, alpha=0.01)
c = crit.center.float()
print(f"loss {loss.item():.4f} center mean {c.mean():.5f} std {c.std():.5f} moved {(c - 0.5).norm():.5f}")
