import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self, features=32, hidden=128, classes=5):
        super().__init__()
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        h = torch.relu(self.fc2(h))
        return self.fc3(h)


class ReweightTrainer:
    """Learns the weights of examples from a small clean set (Ren et al., 2018)."""

    def __init__(self, model, clean_x, clean_y, lr=1e-3, look_ahead=1e-7):
        self.model = model.to(device)
        self.clean = clean_x, clean_y
        self.look_ahead = look_ahead
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)

    def example_weights(self, x, y):
        params = dict(self.model.named_parameters())
        eps = torch.zeros(len(x), device=device, requires_grad=True)
        with torch.autocast("cuda", dtype=torch.float16):
            losses = F.cross_entropy(functional_call(self.model, params, (x,)), y, reduction="none")
            inner = (eps * losses).sum()
        grads = torch.autograd.grad(inner, tuple(params.values()), create_graph=True)
        ahead = {n: p - self.look_ahead * g for (n, p), g in zip(params.items(), grads)}
        clean_x, clean_y = self.clean
        with torch.autocast("cuda", dtype=torch.float16):
            outer = F.cross_entropy(functional_call(self.model, ahead, (clean_x,)), clean_y)
        (slope,) = torch.autograd.grad(outer, eps)
        weights = torch.clamp(-slope, min=0)
        total = weights.sum()
        return (weights / total if total > 0 else weights).detach()

    def step(self, x, y):
        weights = self.example_weights(x, y)
        with torch.autocast("cuda", dtype=torch.float16):
            losses = F.cross_entropy(self.model(x), y, reduction="none")
            loss = (weights * losses).sum()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), weights


def make_data(n, centers, noise):
    classes = len(centers)
    y = torch.randint(classes, (n,))
    x = centers[y] + 1.5 * torch.randn(n, centers.shape[1])
    wrong = torch.rand(n) < noise
    given = torch.where(wrong, (y + 1 + torch.randint(classes - 1, (n,))) % classes, y)
    return x.to(device), given.to(device), y.to(device), wrong.to(device)


def main():
    torch.manual_seed(5)
    centers = torch.randn(5, 32) * 0.7
    x, given, _, wrong = make_data(4096, centers, 0.5)
    clean_x, _, clean_y, _ = make_data(128, centers, 0.0)
    test_x, _, test_y, _ = make_data(1024, centers, 0.0)
    trainer = ReweightTrainer(Net(), clean_x, clean_y)
    used = []
    for step in range(60):
        rows = torch.randint(len(x), (128,))
        loss, weights = trainer.step(x[rows], given[rows])
        used.append(((weights > 0).float().mean().item(), weights[wrong[rows]].sum().item()))
        if step % 20 == 19:
            share, on_wrong = torch.tensor(used[-20:]).mean(0).tolist()
            print(f"step {step + 1}: loss {loss:.3f} used {share:.3f} weight on wrong labels {on_wrong:.3f}")
    with torch.no_grad():
        accuracy = (trainer.model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
