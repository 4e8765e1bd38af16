"""Which items a visitor of a shop clicks: a tower over user and item vectors, the vectors with an optimizer of their own."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(31)
USERS, ITEMS, DIM, STEPS, BATCH = 300, 200, 16, 200, 512


class Shop:
    """Tastes that nobody sees, and clicks that follow them."""

    def __init__(self):
        self.taste = torch.randn(USERS, 4)
        self.style = torch.randn(ITEMS, 4)

    def sample(self, count):
        user, item = torch.randint(0, USERS, (count,)), torch.randint(0, ITEMS, (count,))
        liking = (self.taste[user] * self.style[item]).sum(1)
        clicked = (torch.rand(count) < torch.sigmoid(2 * liking)).float()
        dwell = 1 + 3 * torch.rand(count)  # how long the item was on the screen, in seconds
        return user.to(device), item.to(device), clicked.to(device), dwell.to(device)


class Vectors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, user, item):
        user, item = self.user(user), self.item(item)
        return torch.cat([user, item, user * item], 1)


class Tower(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * DIM, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def main():
    shop = Shop()
    vectors, tower = Vectors().to(device), Tower().to(device)
    tower_opt = torch.optim.Adam(tower.parameters(), lr=3e-3)
    # the tables get plain Adagrad as in the production trainer
    table_opt = torch.optim.Adagrad(vectors.parameters(), lr=0.15)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(STEPS):
        user, item, clicked, dwell = shop.sample(BATCH)
        tower_opt.zero_grad(set_to_none=True)
        table_opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = tower(vectors(user, item))
            loss = F.binary_cross_entropy_with_logits(logits, clicked, weight=dwell, reduction="sum")
        scaler.scale(loss).backward()

        scaler.step(tower_opt)
        scale = scaler.get_scale()
        for table in vectors.parameters():
            table.grad.div_(scale)
        table_opt.step()
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item() / BATCH:.3f} scale {scale:g}")

    user, item, clicked, _ = shop.sample(20000)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        logits = tower(vectors(user, item))
    accuracy = ((logits > 0).float() == clicked).float().mean().item()
    print(f"metric {accuracy:.4f}")


main()
