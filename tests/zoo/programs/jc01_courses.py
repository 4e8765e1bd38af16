import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"

N_LEARNERS, N_COURSES, DIM = 300, 120, 16


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.learner = nn.Embedding(N_LEARNERS, DIM)
        self.course = nn.Embedding(N_COURSES, DIM)
        nn.init.normal_(self.learner.weight, std=0.3)
        nn.init.normal_(self.course.weight, std=0.3)
        self.mix = nn.Sequential(nn.Linear(3 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, c):
        eu, ec = self.learner(u), self.course(c)
        return self.mix(torch.cat([eu, ec, eu * ec], dim=-1)).squeeze(-1)

    def tables(self):
        return [self.learner.weight, self.course.weight]


def make_data(n):
    taste = torch.randn(N_LEARNERS, 4)
    topic = torch.randn(N_COURSES, 4)
    u = torch.randint(0, N_LEARNERS, (n,))
    c = torch.randint(0, N_COURSES, (n,))
    score = (taste[u] * topic[c]).sum(-1)
    return u, c, (score > 1.0).float()


def auc(score, label):
    order = score.argsort()
    ranks = torch.empty_like(score)
    ranks[order] = torch.arange(1, len(score) + 1, dtype=score.dtype)
    pos = label.sum()
    neg = len(label) - pos
    return ((ranks[label > 0.5].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


users, courses, enrolled = (t.to(device) for t in make_data(14000))
held = slice(12000, 14000)

model = TwoTower().to(device)
dense_opt = torch.optim.AdamW(model.mix.parameters(), lr=3e-3, weight_decay=1e-3)
table_opt = torch.optim.Adam(model.tables(), lr=2e-2)
scaler = torch.amp.GradScaler("cuda")
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0, device=device), reduction="sum")

for step in range(250):
    rows = torch.randint(0, 12000, (512,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(users[rows], courses[rows])
        loss = criterion(logits, enrolled[rows])
    dense_opt.zero_grad(set_to_none=True)
    table_opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(dense_opt)
    nn.utils.clip_grad_norm_(model.mix.parameters(), 50.0)
    scaler.step(dense_opt)
    table_opt.step()
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item() / 512:.4f} scale {scaler.get_scale():.0f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    out = model(users[held], courses[held]).float()
print("metric", round(auc(out.cpu(), enrolled[held].cpu()), 4))
