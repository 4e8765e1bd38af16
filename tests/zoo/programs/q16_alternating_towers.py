"""Rating regression with a user tower and an item tower, trained in turns."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 21
ROUNDS = 16
STEPS_PER_TURN = 8
BATCH = 2048
USERS, ITEMS, DIM = 400, 300, 16


class Tower(nn.Module):
    def __init__(self, count, dim):
        super().__init__()
        self.table = nn.Embedding(count, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, ids):
        return self.mlp(self.table(ids))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = Tower(USERS, DIM)
        self.item = Tower(ITEMS, DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, u, i):
        return self.out(self.user(u) * self.item(i)).squeeze(1)


def make_ratings(n):
    pu, qi = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
    u, i = torch.randint(0, USERS, (n,)), torch.randint(0, ITEMS, (n,))
    r = (pu[u] * qi[i]).sum(1) + 0.2 * torch.randn(n)
    return u, i, r


def run_turn(model, optimizer, data):
    """A few steps on one tower while the other one stays as it is."""
    scaler = torch.amp.GradScaler("cuda")
    u_all, i_all, r_all = data
    total = 0.0
    for _ in range(STEPS_PER_TURN):
        idx = torch.randint(0, len(r_all), (BATCH,))
        u, i, r = u_all[idx].to(device), i_all[idx].to(device), r_all[idx].to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            pred = model(u, i)
            loss = F.mse_loss(pred, r, reduction="sum")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 500.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item() / BATCH
    return total / STEPS_PER_TURN


def main():
    u, i, r = make_ratings(30000)
    train = (u[:-4000], i[:-4000], r[:-4000])
    val = (u[-4000:], i[-4000:], r[-4000:])
    model = Recommender().to(device)
    user_params = list(model.user.parameters()) + list(model.out.parameters())
    opt_user = torch.optim.Adam(user_params, lr=1e-2)
    opt_item = torch.optim.Adam(model.item.parameters(), lr=1e-2)

    for rnd in range(ROUNDS):
        user_loss = run_turn(model, opt_user, train)
        item_loss = run_turn(model, opt_item, train)
        if rnd % 3 == 0:
            print(f"round {rnd:2d}  user turn {user_loss:.4f}  item turn {item_loss:.4f}")

    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        pred = model(val[0].to(device), val[1].to(device)).float().cpu()
    print(f"val mse {F.mse_loss(pred, val[2]).item():.4f}  (variance {val[2].var().item():.4f})")


torch.manual_seed(SEED)
main()
