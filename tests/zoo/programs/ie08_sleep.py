"""Sleep stages from band powers, with early stopping."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def nights(n, generator):
    powers = torch.randn(n, 16, generator=generator)
    slow, fast, spindle = powers[:, :4].mean(1) * 2, powers[:, 4:8].mean(1) * 2, powers[:, 8:12].amax(1)
    stage = (slow > 0.4).long() + 2 * ((fast * slow) > 0).long()
    stage[(spindle > 2.0) & (stage == 0)] = 4
    return powers.to(device), stage.to(device)


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.best, self.waited, self.weights = patience, None, 0, None

    def __call__(self, loss, model):
        if self.best is None or loss < self.best:
            self.best, self.waited = loss, 0
            self.weights = copy.deepcopy(model.state_dict())
        else:
            self.waited += 1
        return self.waited >= self.patience


@torch.no_grad()
def validate(model, x, y):
    served = copy.deepcopy(model).to(torch.bfloat16).eval()
    return F.cross_entropy(served(x.to(torch.bfloat16)), y)


def main():
    torch.manual_seed(8)
    generator = torch.Generator().manual_seed(8)
    x, y = nights(3000, generator)
    x_val, y_val = nights(800, generator)
    x_test, y_test = nights(1000, generator)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    stopping = EarlyStopping()
    for round_ in range(280):
        rows = torch.randint(0, len(x), (256,), device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        if stopping(validate(model, x_val, y_val), model):
            break
    print(f"stopped in round {round_}, best {float(stopping.best):.4f}")
    model.load_state_dict(stopping.weights)
    with torch.no_grad():
        correct = model(x_test).argmax(1) == y_test
    print("metric", round(correct.float().mean().item(), 4))


main()
