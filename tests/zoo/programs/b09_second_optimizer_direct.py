"""Recommender: the dense part steps through the scaler, the embeddings have plain SGD of their own."""
import torch
import torch.nn as nn

torch.manual_seed(0)
dev = torch.device("cuda")


class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(200, 16), nn.Embedding(300, 16)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        return self.mlp(torch.cat([self.users(u), self.items(i)], -1)).squeeze(-1)


model = Rec().to(dev)
tables = [*model.users.parameters(), *model.items.parameters()]
dense_opt = torch.optim.Adam(model.mlp.parameters(), lr=1e-3)
table_opt = torch.optim.SGD(tables, lr=0.05)
scaler = torch.amp.GradScaler("cuda", init_scale=512.0)
taste = torch.randn(200, 300)
for step in range(60):
    u, i = torch.randint(0, 200, (128,)), torch.randint(0, 300, (128,))
    y = (taste[u, i] > 0).float().to(dev)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.binary_cross_entropy_with_logits(model(u.to(dev), i.to(dev)), y)
    dense_opt.zero_grad()
    table_opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(dense_opt)
    table_opt.step()
    scaler.update()
    if step % 20 == 19:
        print(step, loss.item())
