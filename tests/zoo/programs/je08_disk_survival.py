"""Chance that a hard disk outlives its warranty: discrete hazards from SMART attributes."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
WEEKS, ATTRS = 52, 8


def fleet(rng, n):
    x = rng.normal(size=(n, ATTRS)).astype(np.float32)
    risk = 0.9 * x[:, 0] + 0.6 * x[:, 1] - 0.5 * x[:, 2] + 0.3 * x[:, 3] * x[:, 4]
    hazard = 1 / (1 + np.exp(7.6 - risk[:, None] - 0.01 * np.arange(WEEKS)))
    died = rng.random((n, WEEKS)) < hazard
    week = np.where(died.any(1), died.argmax(1), WEEKS)
    truth = np.log1p(-hazard).sum(1)
    return torch.from_numpy(x), torch.from_numpy(week), torch.from_numpy(truth.astype(np.float32))


class HazardNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(ATTRS, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.out = nn.Linear(32, WEEKS)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.constant_(self.out.bias, -6.0)

    def forward(self, x):
        return self.out(self.body(x))


def hazard_loss(logits, week):
    t = torch.arange(WEEKS, device=logits.device)
    at_risk = (t[None] <= week[:, None]).float()
    event = (t[None] == week[:, None]).float()
    loss = F.binary_cross_entropy_with_logits(logits, event, reduction="none")
    return (loss * at_risk).sum(1).mean()


def survival(model, x):
    hazard = torch.sigmoid(model(x))
    return torch.cumprod(1 - hazard, dim=1)[:, -1]


def rank_correlation(a, b):
    """Kendall's tau-a over random pairs."""
    i, j = torch.randint(0, len(a), (2, 20000))
    return (torch.sign(a[i] - a[j]) * torch.sign(b[i] - b[j])).mean().item()


def main():
    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    x, week, _ = fleet(rng, 6000)
    xt, _, truth = fleet(rng, 1500)
    model = HazardNet().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    for step in range(150):
        pick = torch.randint(0, len(x), (256,))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = hazard_loss(model(x[pick].to(device)), week[pick].to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} nll {loss.item():.4f}")
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        alive = survival(model, xt.to(device)).float().cpu()
    print("warranty survival, quartiles:", [round(q, 4) for q in alive.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()])
    print(f"metric {rank_correlation(alive, truth):.4f}")


if __name__ == "__main__":
    main()
