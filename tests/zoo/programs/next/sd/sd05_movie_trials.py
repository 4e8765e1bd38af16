"""Rating prediction: two learning rates share one card, in turns; a paused trial lives in host memory."""
import io

import torch
from torch import nn

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
USERS, MOVIES, DIM, BATCH = 300, 400, 24, 256
TURNS, TURN_STEPS = 14, 10
RATES = [2e-3, 6e-3]


class Rater(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.movie = nn.Embedding(MOVIES, DIM)
        self.net = nn.Sequential(nn.Linear(3 * DIM, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 1))
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.movie.weight, std=0.3)

    def forward(self, user, movie):
        u, m = self.user(user), self.movie(movie)
        return 3.0 + self.net(torch.cat([u, m, u * m], dim=1)).squeeze(-1).float()


class Trial:
    def __init__(self, rate):
        self.model = Rater().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.scaler = torch.amp.GradScaler("cuda")

    def pause(self):
        buffer = io.BytesIO()
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, buffer)
        return buffer.getvalue()

    @classmethod
    def resume(cls, rate, data):
        trial = cls(rate)
        state = torch.load(io.BytesIO(data), map_location=device)
        trial.model.load_state_dict(state["model"])
        trial.optimizer.load_state_dict(state["optimizer"])
        return trial

    def train(self, user, movie, rating):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            predicted = self.model(user, movie)
        loss = nn.functional.mse_loss(predicted, rating, reduction="sum")
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @torch.no_grad()
    def validate(self, user, movie, rating):
        with torch.autocast("cuda", dtype=torch.float16):
            predicted = self.model(user, movie)
        return (predicted - rating).square().mean().sqrt().item()


def ratings(count, taste, genre):
    user, movie = torch.randint(0, USERS, (count,)), torch.randint(0, MOVIES, (count,))
    score = 3 + 1.2 * torch.tanh((taste[user] * genre[movie]).sum(1)) + genre[movie, 0]
    return user.to(device), movie.to(device), (score + 0.1 * torch.randn(count)).to(device)


taste, genre = torch.randn(USERS, 2), torch.randn(MOVIES, 2)
train = ratings(40000, taste, genre)
held = ratings(4000, taste, genre)

paused = {rate: Trial(rate).pause() for rate in RATES}
for turn in range(TURNS):
    for rate in RATES:
        trial = Trial.resume(rate, paused[rate])
        for _ in range(TURN_STEPS):
            rows = torch.randint(0, len(train[0]), (BATCH,)).to(device)
            trial.train(*(part[rows] for part in train))
        paused[rate] = trial.pause()

scores = {rate: Trial.resume(rate, data).validate(*held) for rate, data in paused.items()}
best = min(scores, key=scores.get)
print("best rate", best)
print("metric", round(scores[best], 4))
