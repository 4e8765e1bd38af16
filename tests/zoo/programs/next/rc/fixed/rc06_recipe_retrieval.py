"""Two-tower retrieval of recipes: in-batch softmax with the logQ correction for popular recipes."""

import torch
import torch.nn.functional as F
from torch import nn

COOKS, RECIPES, DIM = 300, 400, 16
STEPS, BATCH = 300, 256

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"

popularity = -0.9 * torch.log(torch.arange(1, RECIPES + 1).float())[torch.randperm(RECIPES)]
taste, flavour = torch.randn(COOKS, 4), torch.randn(RECIPES, 4)
choice = F.softmax(popularity + 0.7 * taste @ flavour.T, dim=1)


def clicks(n):
    """Return n clicks: which cook opened which recipe."""
    cook = torch.randint(COOKS, (n,))
    recipe = torch.multinomial(choice[cook], 1).squeeze(1)
    return cook.to(device), recipe.to(device)


class Popularity(nn.Module):
    """Counts how often each recipe comes by, for the correction of the sampled softmax."""

    def __init__(self, items, dtype):
        super().__init__()
        self.register_buffer("seen", torch.ones(items, dtype=dtype))

    @torch.no_grad()
    def update(self, items):
        self.seen.index_add_(0, items, torch.ones_like(items, dtype=self.seen.dtype))

    def log_q(self, items):
        share = self.seen[items].float() / self.seen.float().sum()
        return torch.log(share)


class Towers(nn.Module):
    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.cook = nn.Embedding(COOKS, DIM)
        self.recipe = nn.Embedding(RECIPES, DIM)
        nn.init.normal_(self.cook.weight, std=0.3)
        nn.init.normal_(self.recipe.weight, std=0.3)
        self.cook_tower = nn.Sequential(nn.Linear(DIM, 48), nn.SiLU(), nn.Linear(48, DIM + 1))
        self.recipe_tower = nn.Sequential(nn.Linear(DIM, 48), nn.SiLU(), nn.Linear(48, DIM + 1))
        self.popularity = Popularity(RECIPES, dtype)

    def scores(self, cook, recipe):
        """Score of each cook with each recipe."""
        left = self.cook_tower(self.cook(cook))
        right = self.recipe_tower(self.recipe(recipe))
        return (left @ right.T).float()


model = Towers(dtype=torch.float32).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):
    cook, recipe = clicks(BATCH)
    model.popularity.update(recipe)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model.scores(cook, recipe)
    logits = logits - model.popularity.log_q(recipe)[None, :]
    # the same recipe elsewhere in the batch is no negative
    twin = (recipe[None, :] == recipe[:, None]) & ~torch.eye(BATCH, dtype=torch.bool, device=device)
    logits = logits.masked_fill(twin, -1e4)
    loss = F.cross_entropy(logits, torch.arange(BATCH, device=device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 75 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    everyone, menu = torch.arange(COOKS, device=device), torch.arange(RECIPES, device=device)
    log_choice = F.log_softmax(model.scores(everyone, menu), dim=1)
    nll = -(choice.to(device) * log_choice).sum(1).mean()
print(f"metric {nll.item():.4f}")
