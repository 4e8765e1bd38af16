import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(37)
device = "cuda" if torch.cuda.is_available() else "cpu"
DIM, CLASSES, SEASONS = 32, 5, 3


def make_season(n):
    centers = torch.randn(CLASSES, DIM)
    y = torch.randint(0, CLASSES, (n,))
    return (centers[y] + 0.9 * torch.randn(n, DIM)).to(device), y.to(device)


class Reservoir(nn.Module):
    """Old windows with the logits they had, both in half to save room."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.register_buffer("x", torch.zeros(size, DIM, dtype=torch.float16))
        self.register_buffer("logits", torch.zeros(size, CLASSES, dtype=torch.float16))
        self.register_buffer("y", torch.zeros(size, dtype=torch.long))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def add(self, x, logits, y):
        for i in range(len(x)):
            seen = int(self.seen)
            slot = seen if seen < self.size else int(torch.randint(0, seen + 1, ()))
            if slot < self.size:
                self.x[slot] = x[i].to(self.x.dtype)
                self.logits[slot] = logits[i].to(self.logits.dtype)
                self.y[slot] = y[i]
            self.seen += 1

    def sample(self, n):
        pick = torch.randint(0, min(int(self.seen), self.size), (n,), device=self.x.device)
        return self.x[pick].float(), self.logits[pick].float(), self.y[pick]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.head = nn.Linear(96, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


@torch.no_grad()
def follow(average, model, decay=0.9):
    for a, p in zip(average.parameters(), model.parameters()):
        a.mul_(decay).add_(p.detach(), alpha=1 - decay)


def main():
    seasons = [make_season(1500) for _ in range(SEASONS)]
    model, average = Net().to(device), Net().to(device)
    average.load_state_dict(model.state_dict())
    memory = Reservoir(600).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**22, growth_interval=100)
    for number, (x, y) in enumerate(seasons):
        for step in range(80):
            pick = torch.randint(0, 1000, (48,), device=device)
            with torch.autocast("cuda", dtype=torch.float16):
                logits = model(x[pick])
                loss = F.cross_entropy(logits, y[pick])
                if number > 0:
                    old_x, old_logits, old_y = memory.sample(64)
                    out = model(old_x)
                    loss = loss + F.cross_entropy(out, old_y) + 0.2 * F.mse_loss(out.float(), old_logits)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            follow(average, model)
            if step >= 40:
                memory.add(x[pick], logits, y[pick])
        print(f"season {number}  loss {loss.item():.4f}  scale {scaler.get_scale():.0f}  seen {int(memory.seen)}")

    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        right = [(average(x[1000:]).argmax(1) == y[1000:]).float().mean().item() for x, y in seasons]
    print("metric", round(sum(right) / len(right), 4))


main()
