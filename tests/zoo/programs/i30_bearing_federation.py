"""Fault classifier for bearings, learned by plants that keep their own recordings (federated gradients, one process)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS, CLASSES, FEATURES, LOCAL_BATCH = 100, 8, 32, 64

torch.manual_seed(11)
signatures = torch.randn(CLASSES, FEATURES)


def recordings(classes, gain, n=512):
    y = torch.tensor(classes)[torch.randint(len(classes), (n,))]
    x = (signatures[y] + 0.9 * torch.randn(n, FEATURES)) * gain
    return x.to(device), y.to(device)


class Plant:
    """One participant: its recordings and its own loss scale, as in the on-device runtime."""

    def __init__(self, name, classes, gain):
        self.name = name
        self.x, self.y = recordings(classes, gain)
        self.test = recordings(classes, gain)
        self.scale, self.ceiling, self.good = 2.0**16, 2.0**16, 0

    def gradients(self, model):
        """Return the payload for the server, or None if this round is to be left out."""
        pick = torch.randint(len(self.x), (LOCAL_BATCH,), device=device)
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(self.x[pick]), self.y[pick])
        (loss * self.scale).backward()
        payload = [p.grad.detach().clone() for p in model.parameters()]
        if not all(torch.isfinite(g).all() for g in payload):
            self.scale, self.good = self.scale / 2, 0
            return None
        self.good += 1
        if self.good >= 400:
            self.scale, self.good = min(self.scale * 2, self.ceiling), 0
        return payload

    @torch.no_grad()
    def accuracy(self, model):
        x, y = self.test
        return (model(x).argmax(1) == y).float().mean().item()


class Server:
    def __init__(self, model, plants, lr=0.05):
        self.model, self.plants = model, plants
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def round(self):
        received = [(plant, plant.gradients(self.model)) for plant in self.plants]
        received = [(plant, payload) for plant, payload in received if payload is not None]
        if not received:
            return
        scale = self.plants[0].scale
        for index, p in enumerate(self.model.parameters()):
            total = sum(payload[index] for _, payload in received)
            p.grad = total / (len(received) * scale)
        self.optimizer.step()


def main():
    plants = [
        Plant("north", [0, 1, 2], gain=1.0),
        Plant("south", [2, 3, 4], gain=1.5),
        Plant("press", [5, 6, 7], gain=40.0),
    ]
    model = nn.Sequential(nn.Linear(FEATURES, 48), nn.ReLU(), nn.Linear(48, CLASSES)).to(device)
    server = Server(model, plants, lr=0.005)
    for _ in range(ROUNDS):
        server.round()
    for plant in plants:
        print(f"{plant.name}: accuracy {plant.accuracy(model):.3f}")
    print(f"final metric: {min(plant.accuracy(model) for plant in plants):.4f}")


if __name__ == "__main__":
    main()
