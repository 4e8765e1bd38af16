"""Selects a panel of genes with annealed gates and predicts the response to a drug from the panel."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"

GENES, ACTIVE, STEPS = 120, 12, 900
active = torch.randperm(GENES)[:ACTIVE]
effect = torch.randn(ACTIVE, 3)


def cohort(n):
    expression = torch.randn(n, GENES)
    drive = torch.tanh(expression[:, active] @ effect / 2)
    response = drive.sum(1) + 0.1 * torch.randn(n)
    return expression.to(device), response.to(device)


class GeneGates(nn.Module):
    """A gate for each gene: sigmoid(logit / temperature), hard when the panel is read out."""

    def __init__(self, hot=2.0, cold=0.05):
        super().__init__()
        self.logit = nn.Parameter(0.3 + 0.01 * torch.randn(GENES))
        self.hot, self.cold = hot, cold
        self.register_buffer("updates", torch.zeros((), dtype=torch.bfloat16))

    def temperature(self):
        progress = (self.updates.float() / (0.8 * STEPS)).clamp(max=1.0)
        return self.hot * (self.cold / self.hot) ** progress

    def forward(self, x):
        if self.training:
            self.updates += 1
            gate = torch.sigmoid(self.logit / self.temperature())
        else:
            gate = (self.logit > 0).float()
        return x * gate, gate


class PanelNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = GeneGates()
        self.body = nn.Sequential(nn.Linear(GENES, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        kept, gate = self.gates(x)
        return self.body(kept).squeeze(-1), gate


x_train, y_train = cohort(6000)
x_test, y_test = cohort(3000)
model = PanelNet().to(device)
optimizer = torch.optim.Adam([
    {"params": model.gates.parameters(), "lr": 5e-3},
    {"params": model.body.parameters(), "lr": 2e-3},
])

for step in range(STEPS):
    pick = torch.randint(len(x_train), (128,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        response, gate = model(x_train[pick])
    loss = F.mse_loss(response.float(), y_train[pick]) + 3e-3 * gate.float().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 150 == 0:
        print(f"step {step} loss {loss.item():.3f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    response, gate = model(x_test)
    error = (response.float() - y_test).pow(2).mean()
print(f"genes in the panel {int(gate.sum())}")
print(f"metric {error.item():.4f}")
