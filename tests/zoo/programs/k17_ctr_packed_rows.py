"""Click-through model for a shop feed. Impressions are kept as one compact matrix so a day fits in GPU memory."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_USERS, N_ITEMS, N_ROWS = 900, 6000, 240_000
device = "cuda" if torch.cuda.is_available() else "cpu"


def simulate(seed=3):
    rng = np.random.default_rng(seed)
    user_taste = rng.normal(size=(N_USERS, 4))
    item_style = rng.normal(size=(N_ITEMS, 4))
    item_pull = rng.normal(scale=1.6, size=N_ITEMS)
    u = rng.integers(0, N_USERS, N_ROWS)
    i = rng.integers(0, N_ITEMS, N_ROWS)
    hour = rng.integers(0, 24, N_ROWS)
    discount = rng.uniform(0, 0.6, N_ROWS)
    logit = (0.5 * (user_taste[u] * item_style[i]).sum(1) + item_pull[i]
             + 1.5 * discount + 0.3 * np.sin(hour / 24 * 2 * np.pi) - 0.7)
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(-logit))
    return np.column_stack([u, i, hour, discount, y])


class ImpressionStore:
    """All columns of all impressions in a single tensor, shuffled once per pass."""

    def __init__(self, table, dtype=torch.float16):
        self.rows = torch.from_numpy(table).to(dtype).to(device)

    def batches(self, size, gen):
        while True:
            order = torch.randperm(len(self.rows), generator=gen).to(device)
            for part in order.split(size):
                yield self.unpack(self.rows[part])

    @staticmethod
    def unpack(rows):
        user, item = rows[:, 0].long(), rows[:, 1].long()
        dense = torch.stack([rows[:, 2] / 24, rows[:, 3]], 1)
        return user, item, dense, rows[:, 4]


class FeedModel(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.user = nn.Embedding(N_USERS, dim)
        self.item = nn.Embedding(N_ITEMS + 1, dim)  # last row: unknown item
        self.item_bias = nn.Embedding(N_ITEMS + 1, 1)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.item_bias.weight)
        self.deep = nn.Sequential(nn.Linear(2 * dim + 2, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, user, item, dense):
        u, v = self.user(user), self.item(item)
        x = torch.cat([u, v, dense], 1)
        return (self.deep(x) + self.item_bias(item)).squeeze(1) + (u * v).sum(1)


def evaluate(model, u, i, dense, y):
    with torch.no_grad():
        p = model(u, i, dense)
        return F.binary_cross_entropy_with_logits(p, y).item()


def main():
    torch.manual_seed(0)
    table = simulate()
    train, test = table[:-20_000], torch.from_numpy(table[-20_000:]).to(device)
    tu, ti = test[:, 0].long(), test[:, 1].long()
    td = torch.stack([test[:, 2] / 24, test[:, 3]], 1).float()
    ty = test[:, 4].float()
    stream = ImpressionStore(train).batches(2048, torch.Generator().manual_seed(1))
    model = FeedModel().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    for step in range(220):
        u, i, dense, y = next(stream)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.binary_cross_entropy_with_logits(model(u, i, dense).float(), y.float())
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 40 == 39:
            print(f"step {step + 1:4d}  train {loss.item():.4f}  test {evaluate(model, tu, ti, td, ty):.4f}")
    print(f"final test logloss {evaluate(model, tu, ti, td, ty):.4f}")


if __name__ == "__main__":
    main()
