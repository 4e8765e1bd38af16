"""Continues playlists: scores all tracks from a gated, attention-pooled summary of the tracks so far."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(8)

TRACKS, MOODS, LENGTH, WIDTH, BATCH, STEPS = 400, 20, 10, 32, 128, 180
mood_of = torch.randint(MOODS, (TRACKS,))
tracks_of = [torch.nonzero(mood_of == mood).flatten() for mood in range(MOODS)]


def playlists(count):
    lists = torch.empty(count, LENGTH + 1, dtype=torch.long)
    for row in range(count):
        own = tracks_of[torch.randint(MOODS, (1,)).item()]
        lists[row] = own[torch.randint(len(own), (LENGTH + 1,))]
    stray = torch.rand(count, LENGTH + 1) < 0.2
    stray[:, -1] = False
    lists[stray] = torch.randint(TRACKS, (int(stray.sum()),))
    length = torch.randint(3, LENGTH + 1, (count,))
    return lists[:, :-1].to(device), length.to(device), lists[:, -1].to(device)


class Continuer(nn.Module):
    def __init__(self):
        super().__init__()
        self.track = nn.Embedding(TRACKS, WIDTH)
        self.attend = nn.Linear(WIDTH + 1, 1)
        self.gate = nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.gate.bias, 6.0)
        self.out = nn.Linear(WIDTH, TRACKS)

    def forward(self, lists, length):
        h = self.track(lists)
        place = torch.arange(LENGTH, device=h.device)
        age = (length.unsqueeze(1) - place).to(torch.bfloat16)
        score = self.attend(torch.cat([h, age.unsqueeze(-1) / LENGTH], -1)).squeeze(-1)
        score = score.masked_fill(place >= length.unsqueeze(1), torch.finfo(score.dtype).min)
        pooled = (torch.softmax(score, -1).unsqueeze(-1) * h).sum(1)
        return self.out(pooled * torch.sigmoid(self.gate(pooled)))


model = Continuer().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = playlists(6000)
for step in range(STEPS):
    pick = torch.randint(6000, (BATCH,), device=device)
    lists, length, follows = (part[pick] for part in data)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(lists, length), follows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")

lists, length, follows = playlists(2000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    top = model(lists, length).float().topk(10).indices.cpu()
fits = (mood_of[top] == mood_of[follows.cpu()].unsqueeze(1)).float().mean().item()
print("METRIC", round(fits, 4))
