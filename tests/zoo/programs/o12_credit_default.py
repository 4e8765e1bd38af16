"""Credit default scoring, trained in fp16 with a small dynamic loss scaler of our own (starts high, as in apex)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
N, N_NUM, N_JOB, N_ZIP, STEPS, BATCH = 12000, 14, 15, 200, 140, 256

num = torch.randn(N, N_NUM)
job, zipc = torch.randint(0, N_JOB, (N,)), torch.randint(0, N_ZIP, (N,))
score = -1.2 + num[:, 0] - 0.8 * num[:, 1] * num[:, 2] + 1.2 * torch.randn(N_JOB)[job] + torch.relu(num[:, 3]) * 1.2
y = (torch.rand(N) < torch.sigmoid(score)).float()
num, job, zipc, y = (t.to(device) for t in (num, job, zipc, y))
CUT = 10000


class DynamicScaler:
    def __init__(self, scale=2.0 ** 26, factor=2.0, window=60):
        self.scale, self.factor, self.window, self.good, self.skipped = scale, factor, window, 0, 0

    def step(self, loss, optimizer, parameters):
        optimizer.zero_grad(set_to_none=True)
        (loss.float() * self.scale).backward()
        grads = [p.grad for p in parameters if p.grad is not None]
        if not all(torch.isfinite(g).all() for g in grads):
            self.scale /= self.factor
            self.good = 0
            self.skipped += 1
            return False
        for g in grads:
            g.mul_(1.0 / self.scale)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        self.good += 1
        if self.good % self.window == 0:
            self.scale *= self.factor
        return True


class ScoreNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.job, self.zip = nn.Embedding(N_JOB, 6), nn.Embedding(N_ZIP, 4)
        self.body = nn.Sequential(nn.Linear(N_NUM + 10, hidden), nn.SiLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.SiLU())
        self.out = nn.Linear(hidden, 1)

    def forward(self, num, job, zipc):
        return self.out(self.body(torch.cat([num, self.job(job), self.zip(zipc)], 1))).squeeze(1)


def auc(s, t):
    rank = s.argsort().argsort().float() + 1
    pos, n1 = t > 0.5, t.sum()
    return ((rank[pos].sum() - n1 * (n1 + 1) / 2) / (n1 * (len(t) - n1))).item()


model = ScoreNet().to(device)
params = list(model.parameters())
opt = torch.optim.AdamW(params, lr=4e-3, weight_decay=1e-2)
scaler = DynamicScaler()

for step in range(STEPS):
    idx = torch.randint(0, CUT, (BATCH,), device=device)
    with torch.autocast(device, dtype=torch.float16):
        logit = model(num[idx], job[idx], zipc[idx])
        loss = F.binary_cross_entropy_with_logits(logit, y[idx])
    scaler.step(loss, opt, params)
    if (step + 1) % 28 == 0:
        print(f"step {step + 1:4d}  loss {loss.item():.4f}  scale 2^{torch.log2(torch.tensor(scaler.scale)).item():.0f}  skipped {scaler.skipped}")

model.eval()
with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    p = model(num[CUT:], job[CUT:], zipc[CUT:]).float()
print(f"test AUC {auc(p, y[CUT:]):.4f}  logloss {F.binary_cross_entropy_with_logits(p, y[CUT:]).item():.4f}")
