"""Track recommender: matrix factorisation with context; the track table is the largest part of the model."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)

USERS, TRACKS, DIM, CONTEXT = 200, 150, 16, 6
BATCH, STEPS = 768, 350


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.track = nn.Embedding(TRACKS, DIM).bfloat16()  # half the memory of the table
        self.track_bias = nn.Embedding(TRACKS, 1)
        self.context = nn.Sequential(nn.Linear(CONTEXT, 32), nn.ReLU(), nn.Linear(32, DIM))
        nn.init.zeros_(self.track_bias.weight)

    def forward(self, user, track, context):
        taste = self.user(user) + self.context(context)
        match = (taste * self.track(track)).sum(-1) / DIM**0.5 * 2
        return match + self.track_bias(track).squeeze(-1)


# synthetic listening: who listens to what depends on taste, context and popularity
true_user = torch.randn(USERS, DIM, device=device)
true_track = torch.randn(TRACKS, DIM, device=device)
true_context = torch.randn(CONTEXT, DIM, device=device) * 0.4
popularity = torch.randn(TRACKS, device=device) * 0.5
# both tables are warm-started: users from last season, tracks from a content model that knows the genre only
warm_users = true_user + 0.2 * torch.randn(USERS, DIM, device=device)
warm_tracks = 0.6 * true_track + 0.8 * torch.randn(TRACKS, DIM, device=device)


def sessions(n):
    user = torch.randint(0, USERS, (n,), device=device)
    track = torch.randint(0, TRACKS, (n,), device=device)
    context = torch.randn(n, CONTEXT, device=device)
    taste = true_user[user] + context @ true_context
    logit = (taste * true_track[track]).sum(-1) / DIM**0.5 * 2 + popularity[track]
    return user, track, context, (torch.rand(n, device=device) < torch.sigmoid(logit)).float()


model = Recommender().to(device)
model.user.weight.data.copy_(warm_users)
model.track.weight.data.copy_(warm_tracks)
groups = [
    {"params": [model.track.weight, model.user.weight], "lr": 2e-3},
    {"params": [model.track_bias.weight, *model.context.parameters()], "lr": 5e-3},
]
opt = torch.optim.Adam(groups, betas=(0.9, 0.99))
sched = torch.optim.lr_scheduler.LinearLR(opt, start_factor=1.0, end_factor=0.1, total_iters=STEPS)

for step in range(STEPS):
    user, track, context, played = sessions(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(user, track, context)
        loss = F.binary_cross_entropy_with_logits(logits, played)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()

model.eval()
with torch.no_grad():
    user, track, context, played = sessions(60000)
    log_loss = F.binary_cross_entropy_with_logits(model(user, track, context).float(), played).item()
print(f"metric {log_loss:.4f}")
