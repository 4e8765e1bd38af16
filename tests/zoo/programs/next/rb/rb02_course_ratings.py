"""Predict the ratings of online courses: two feature towers and an intercept for each course."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

N_COURSES, N_USERS = 800, 3000
STEPS, BATCH = 300, 1024
LR = 4e-3

# ground truth
course_info = torch.randn(N_COURSES, 6, device=device)
user_info = torch.randn(N_USERS, 10, device=device)
quality = 0.7 * torch.randn(N_COURSES, device=device)
taste = torch.randn(10, 6, device=device) / 8


def draw(n):
    user = torch.randint(0, N_USERS, (n,), device=device)
    course = torch.randint(0, N_COURSES, (n,), device=device)
    fit = ((user_info[user] @ taste) * course_info[course]).sum(1)
    rating = 3.4 + quality[course] + fit + 0.3 * torch.randn(n, device=device)
    return user, course, rating


class RatingModel(nn.Module):
    def __init__(self, start, dim=16):
        super().__init__()
        self.user_tower = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, dim))
        self.course_tower = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, dim))
        # the production catalogue has 40M rows: keep the intercepts small
        self.intercept = nn.Embedding(N_COURSES, 1, device=device).to(torch.bfloat16)
        nn.init.constant_(self.intercept.weight, start)

    def forward(self, user, course):
        u, c = self.user_tower(user_info[user]), self.course_tower(course_info[course])
        affinity = (u * c).sum(1).float() / 4
        return self.intercept(course).squeeze(1).float() + affinity


train, test = draw(60000), draw(8000)
model = RatingModel(start=train[2].mean().item()).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LR)

for step in range(STEPS):
    pick = torch.randint(0, len(train[2]), (BATCH,), device=device)
    user, course, rating = (column[pick] for column in train)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(user, course), rating)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 60 == 0:
        print(f"step {step} mse {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    error = model(test[0], test[1]) - test[2]
print(f"metric {error.pow(2).mean().sqrt().item():.4f}")
