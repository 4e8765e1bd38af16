"""Skill ratings of players with a map-and-side model on top, to forecast the results of online matches."""

import torch
from torch import nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
PLAYERS, MAPS, SEASON, BATCH = 400, 12, 60000, 64

skill = 1500 + 260 * torch.randn(PLAYERS, device=device)
side_edge = 1.2 * torch.randn(MAPS, device=device)
tempo_edge = 0.8 * torch.randn(MAPS, device=device)


def matches(n):
    a = torch.randint(PLAYERS, (n,), device=device)
    b = (a + 1 + torch.randint(PLAYERS - 1, (n,), device=device)) % PLAYERS
    played = torch.randint(MAPS, (n,), device=device)
    tempo = torch.randn(n, device=device)
    logit = (skill[a] - skill[b]) / 174.0 + side_edge[played] + tempo_edge[played] * torch.tanh(tempo)
    won = torch.bernoulli(torch.sigmoid(logit))
    return a, b, played, tempo, won


class Forecast(nn.Module):
    """Logit of a win of the first player: rating difference plus what the map makes of it."""

    def __init__(self):
        super().__init__()
        self.rating = nn.Embedding(PLAYERS, 1, dtype=torch.bfloat16)
        nn.init.constant_(self.rating.weight, 1500.0)
        self.map = nn.Embedding(MAPS, 16)
        self.context = nn.Sequential(nn.Linear(17, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, a, b, played, tempo):
        gap = self.rating(a).float() - self.rating(b).float()
        context = self.context(torch.cat([self.map(played), tempo[:, None]], -1))
        return gap.squeeze(-1) / 174.0 + context.float().squeeze(-1)


model = Forecast().to(device)
ratings = torch.optim.SGD([model.rating.weight], lr=24.0 * 174.0)
network = torch.optim.Adam([*model.map.parameters(), *model.context.parameters()], lr=2e-3)
data = matches(SEASON)
step = 0
for epoch in range(3):
    ratings.param_groups[0]["lr"] = 174.0 * (24.0, 12.0, 6.0)[epoch]
    running = 0.0
    for start in range(0, SEASON, BATCH):
        a, b, played, tempo, won = (column[start : start + BATCH] for column in data)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logit = model(a, b, played, tempo)
            loss = nn.functional.binary_cross_entropy_with_logits(logit, won, reduction="sum")
        ratings.zero_grad()
        network.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.context.parameters(), 50.0)
        ratings.step()
        network.step()
        running += loss.item() / SEASON
        step += 1
    spread = model.rating.weight.float().std().item()
    print(f"epoch {epoch} log loss {running:.4f} spread of ratings {spread:.0f}")

with torch.no_grad():
    a, b, played, tempo, won = matches(20000)
    found = model.rating.weight.float().squeeze(-1)
    print(f"map model: edge error {(model(a, a, played, tempo) - side_edge[played] - tempo_edge[played] * torch.tanh(tempo)).abs().mean():.3f}")
    miss = ((found - found.mean()) - (skill - skill.mean())).pow(2).mean().sqrt()
    print(f"log loss {nn.functional.binary_cross_entropy_with_logits(model(a, b, played, tempo), won).item():.4f}")
print(f"METRIC {miss.item():.2f}")
