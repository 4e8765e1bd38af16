"""Cash demand of bank branches: two worker threads train on their own branches and meet after every batch."""
import copy
import threading

import torch
from torch import nn
import torch.nn.functional as F

SEED, ROUNDS, WORKERS, BRANCHES = 13, 200, 2, 24
torch.manual_seed(SEED)
device = "cuda" if torch.cuda.is_available() else "cpu"
habit = torch.randn(BRANCHES, 3, device=device)
week = torch.randn(7, 3, device=device)
season = torch.randn(6, device=device) / 3


def demand(n, generator):
    branch = torch.randint(BRANCHES, (n,), generator=generator).to(device)
    day = torch.randint(7, (n,), generator=generator).to(device)
    x = torch.randn(n, 6, generator=generator).to(device)
    return (branch, day, x), (habit[branch] * week[day]).sum(-1) + torch.tanh(x @ season)


class Demand(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.branch, self.day = nn.Embedding(BRANCHES, width), nn.Embedding(7, width)
        self.extra = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, branch, day, x):
        return (self.branch(branch) * self.day(day)).sum(-1) / self.day.embedding_dim ** 0.5 + self.extra(x).squeeze(-1)


class Branch(threading.Thread):
    def __init__(self, number, net, message):
        super().__init__()
        self.net = net
        self.generator = torch.Generator().manual_seed(torch.initial_seed() + 100 + number)
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")
        self.message = message
        self.reply = None
        self.go, self.ready, self.over = threading.Semaphore(0), threading.Semaphore(0), False
        self.loss = float("nan")

    def run(self):
        while True:
            self.go.acquire()
            if self.over:
                return
            self.net.load_state_dict(self.message)
            given, y = demand(256, self.generator)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(self.net(*given), y)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.loss = loss.item()
            self.reply = {k: v.detach().to(torch.bfloat16) for k, v in self.net.state_dict().items()}
            self.ready.release()


centre = Demand().to(device)
branches = [Branch(i, copy.deepcopy(centre), None) for i in range(WORKERS)]
for branch in branches:
    branch.start()
for turn in range(ROUNDS):
    state = {k: v.clone() for k, v in centre.state_dict().items()}
    for branch in branches:
        branch.message = state
        branch.go.release()
    for branch in branches:
        branch.ready.acquire()
    merged = {k: sum(b.reply[k].float() for b in branches) / WORKERS for k in state}
    centre.load_state_dict(merged)
    if turn % 40 == 0:
        print(turn, " ".join(f"{b.loss:.4f}" for b in branches))
for branch in branches:
    branch.over = True
    branch.go.release()
    branch.join()

with torch.no_grad():
    given, y = demand(4096, torch.Generator().manual_seed(999))
    print("METRIC", round(F.mse_loss(centre(*given), y).item(), 4))
