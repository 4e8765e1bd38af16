# Two-tower retrieval with in-batch softmax and the streaming logQ correction of sampled-softmax training.
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
USERS, ITEMS, DIM, BATCH = 300, 200, 24, 256

pop = 1.0 / torch.arange(1, ITEMS + 1).float() ** 1.3
pop = pop / pop.sum()
g = torch.Generator().manual_seed(0)
taste = torch.randn(USERS, 6, generator=g)
genre = torch.randn(ITEMS, 6, generator=g)
affinity = (taste @ genre.t() * 0.7 + pop.log()).softmax(1)


def batches(n):
    for _ in range(n):
        u = torch.randint(0, USERS, (BATCH,), generator=g)
        i = torch.multinomial(affinity[u], 1, generator=g).squeeze(1)
        yield u.to(device), i.to(device)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.uproj = nn.Linear(DIM, DIM)
        self.iproj = nn.Linear(DIM, DIM)
        self.item_bias = nn.Embedding(ITEMS, 1)
        nn.init.zeros_(self.item_bias.weight)
        # impressions per item so far
        self.register_buffer("seen", torch.ones(ITEMS))
        self.register_buffer("total", torch.tensor(float(ITEMS)))

    def count(self, i):
        self.seen.index_add_(0, i, torch.ones_like(i, dtype=self.seen.dtype))
        self.total += i.numel()

    def forward(self, u, i):
        uu = self.uproj(self.user(u))
        ii = self.iproj(self.item(i))
        logits = uu @ ii.t() + self.item_bias(i).t()
        logq = self.seen[i].float().log() - self.total.float().log()
        logits = logits - logq
        same = (i[None] == i[:, None]) & ~torch.eye(len(i), dtype=torch.bool, device=i.device)
        return logits.float().masked_fill(same, float("-inf"))


model = TwoTower().to(device)
model.seen = model.seen.to(torch.bfloat16)      # statistics travel with the half-precision serving bundle
model.total = model.total.double()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
target = torch.arange(BATCH, device=device)
hist = []
for step, (u, i) in enumerate(batches(200)):
    model.count(i)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(u, i), target)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    hist.append(loss.item())
    if step % 50 == 49:
        print(step + 1, sum(hist[-50:]) / 50)
with torch.no_grad():
    s = model.uproj(model.user.weight) @ model.iproj(model.item.weight).t() + model.item_bias.weight.t()
    kl = F.kl_div(s.float().log_softmax(1).cpu(), affinity, reduction="batchmean")
q = (model.seen.float() / model.total.float()).cpu()
print("count of head items", model.seen[:5].tolist(), "KL to true preference", round(kl.item(), 4))
