"""Potency of drugs in cell lines: a dose curve with a potency of each drug and a shift from expression."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(31)
DRUGS, LINES, GENES = 150, 80, 30
potency = 6.0 + 0.9 * torch.randn(DRUGS)  # pEC50
expression = torch.randn(LINES, GENES)
sensitive = expression @ torch.randn(GENES, 2) / GENES**0.5
shift = torch.tanh(sensitive[:, 0]) * sensitive[:, 1]


def assays(n):
    """Return drug, cell line, dose (as -log10 of molar) and inhibition of n assays."""
    drug, line = torch.randint(0, DRUGS, (n,)), torch.randint(0, LINES, (n,))
    dose = 4 + 4 * torch.rand(n)
    inhibition = torch.sigmoid(2.0 * (potency[drug] - dose + shift[line])) + 0.03 * torch.randn(n)
    return drug.to(device), line.to(device), dose.to(device), inhibition.to(device)


class Curve(nn.Module):
    def __init__(self, table_dtype=torch.bfloat16):
        super().__init__()
        self.potency = nn.Embedding(DRUGS, 1, dtype=table_dtype)
        nn.init.constant_(self.potency.weight, 6.0)
        self.slope = nn.Parameter(torch.ones(()))
        self.line = nn.Sequential(nn.Linear(GENES, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, drug, genes, dose):
        middle = self.potency(drug).squeeze(1).float() + self.line(genes).squeeze(1)
        return torch.sigmoid(self.slope * (middle - dose))


genes = expression.to(device)
train, test = assays(12000), assays(4000)
model = Curve().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
EPOCHS, BATCH = 10, 256
for epoch in range(EPOCHS):
    total = 0.0
    for batch in torch.randperm(len(train[0]), device=device).split(BATCH):
        drug, line, dose, inhibition = (one[batch] for one in train)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(drug, genes[line], dose), inhibition)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    if epoch % 3 == 0:
        print(f"epoch {epoch:2d}  loss {total / len(train[0]):.4f}  slope {model.slope.item():.2f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    error = model(test[0], genes[test[1]], test[2]).float() - test[3]
print(f"METRIC {error.square().mean().sqrt().item():.4f}")
