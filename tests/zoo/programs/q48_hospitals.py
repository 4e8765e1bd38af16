"""Federated training of a fundus grading head: four hospitals train in threads, a server averages their weights."""
import copy
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(17)
SITES, GRADES, FEATURES, ROUNDS, LOCAL, BATCH = 4, 5, 24, 600, 2, 64

direction = torch.randn(3, FEATURES) / FEATURES**0.5


def eyes(n, shift):
    x = torch.randn(n, FEATURES) + shift
    z = x @ direction.T
    severity = z[:, 0] + 0.7 * z[:, 1] * z[:, 2] + 0.1 * torch.randn(n)
    grade = torch.bucketize(severity, torch.tensor([-1.0, -0.3, 0.3, 1.0]))
    return x.to(device), grade.to(device)


shifts = [0.15 * torch.randn(FEATURES) for _ in range(SITES)]
archives = [eyes(3000, s) for s in shifts]
held_out = [eyes(500, s) for s in shifts]
plan = torch.randint(3000, (ROUNDS, SITES, LOCAL, BATCH), device=device)


def build():
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, GRADES))
    for layer in net[::2]:
        nn.init.kaiming_normal_(layer.weight)
    return net.to(device)


class Hospital:
    def __init__(self, number):
        self.number, self.model, self.upload = number, build(), None
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-4)

    def train(self, weights, picks):
        self.model.load_state_dict(weights)
        images, grades = archives[self.number]
        for pick in picks:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(images[pick]), grades[pick])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.upload = {name: w.detach().to(torch.bfloat16) for name, w in self.model.state_dict().items()}


server = build()
hospitals = [Hospital(k) for k in range(SITES)]


def evaluate():
    right = total = 0
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for images, grades in held_out:
            right += (server(images).argmax(1) == grades).sum().item()
            total += len(grades)
    return right / total


for number in range(ROUNDS):
    weights = copy.deepcopy(server.state_dict())
    threads = [threading.Thread(target=h.train, args=(weights, plan[number, h.number])) for h in hospitals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.load_state_dict(
        {name: torch.stack([h.upload[name].float() for h in hospitals]).mean(dim=0) for name in weights}
    )
    if number % 120 == 0:
        print(f"round {number} accuracy {evaluate():.3f}")

print(f"METRIC {evaluate():.4f}")
