"""Annual energy use of buildings; the validation pass runs beside training and picks the weights to keep."""
import copy
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS, STEPS, BATCH, PATIENCE = 20, 8, 128, 5


def make_buildings(count):
    area = 1500 + 28000 * torch.rand(count) ** 1.3  # m2
    year = torch.randint(1900, 2024, (count,)).float()
    glazing = torch.rand(count)
    people = torch.rand(count)
    age = (2024 - year) / 124
    use = 0.15 * area / 1000 * (1 + 0.6 * age) + 0.8 * glazing * people + 0.1 * torch.randn(count)
    x = torch.stack([area, year, glazing, people], dim=1)
    return x.to(device), use.to(device)


class EnergyNet(nn.Module):
    def __init__(self, features=4, width=64):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.layers = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.layers(self.norm(x))).squeeze(-1)


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    total = 0.0
    for xb, yb in zip(x.split(200), y.split(200)):
        total += F.l1_loss(model(xb.half()).float(), yb, reduction="sum").item()
    return total / len(x)


def main():
    torch.manual_seed(8)
    x, y = make_buildings(3000)
    x_val, y_val = make_buildings(400)
    x_test, y_test = make_buildings(800)
    model = EnergyNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    best, best_weights, waited = float("inf"), None, 0
    with ThreadPoolExecutor(max_workers=1) as pool:
        for epoch in range(EPOCHS):
            model.train()
            for _ in range(STEPS):
                pick = torch.randint(0, len(x), (BATCH,), device=device)
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.smooth_l1_loss(model(x[pick]), y[pick])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            snapshot = copy.deepcopy(model)
            weights = {k: v.clone() for k, v in snapshot.state_dict().items()}
            value = pool.submit(validate, snapshot.half(), x_val, y_val).result()
            print(f"epoch {epoch} train {loss.item():.4f} val {value:.4f}")
            if value < best:
                best, best_weights, waited = value, weights, 0
            else:
                waited += 1
                if waited >= PATIENCE:
                    break
    model.load_state_dict(best_weights)
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = F.l1_loss(model(x_test), y_test).item()
    print(f"metric {error:.4f}")


if __name__ == "__main__":
    main()
