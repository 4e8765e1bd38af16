"""Federated rating prediction: personal layers stay with the clients, the item tower is averaged."""

import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

N_ITEMS, DIM, ROUNDS, LOCAL_STEPS = 80, 16, 12, 5


class ItemTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(N_ITEMS, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.Tanh(), nn.Linear(32, DIM))

    def forward(self, items):
        return self.mlp(self.embed(items))


class Client:
    """Owns the ratings of some users; some clients rate in stars, some by watch time in minutes."""

    def __init__(self, number, truth, spread, generator):
        self.generator = generator
        self.number = number
        self.items = torch.randint(0, N_ITEMS, (240,), generator=generator).to(device)
        signal = truth[self.items.cpu()] @ torch.randn(truth.shape[1], generator=generator)
        self.target = (spread * (signal + 0.1 * torch.randn(240, generator=generator))).to(device)
        self.spread = spread
        self.personal = nn.Linear(DIM, 1, bias=False).to(device)

    def fit(self, tower, lr=0.02):
        tower = copy.deepcopy(tower)
        groups = [{"params": tower.parameters(), "lr": lr}, {"params": self.personal.parameters(), "lr": lr * self.spread}]
        optimizer = torch.optim.Adam(groups)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(LOCAL_STEPS):
            pick = torch.randint(0, len(self.items), (64,), generator=self.generator).to(device)
            with torch.autocast("cuda", dtype=torch.float16):
                rating = self.personal(tower(self.items[pick])).squeeze(-1)
                loss = nn.functional.mse_loss(rating, self.target[pick])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(tower.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
        return tower.state_dict()

    @torch.no_grad()
    def explained(self, tower):
        with torch.autocast("cuda", dtype=torch.float16):
            rating = self.personal(tower(self.items)).squeeze(-1)
        return 1 - ((rating.float() - self.target) ** 2).mean().item() / self.target.var().item()


def average(states):
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}


def main():
    torch.manual_seed(7)
    generator = torch.Generator()
    generator.manual_seed(8)
    truth = torch.randn(N_ITEMS, 4, generator=generator) / 2
    spreads = [1.0, 1.0, 40.0, 1.0, 1.0, 60.0]
    clients = [Client(number, truth, spread, generator) for number, spread in enumerate(spreads)]
    tower = ItemTower().to(device)

    for number in range(ROUNDS):
        tower.load_state_dict(average([client.fit(tower) for client in clients]))
        if number % 4 == 3:
            scores = [client.explained(tower) for client in clients]
            print(f"round {number + 1} explained " + " ".join(f"{score:.3f}" for score in scores))
    return tower, nn.ModuleList(client.personal for client in clients)


if __name__ == "__main__":
    main()
