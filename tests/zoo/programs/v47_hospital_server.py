"""Lesions in small volumes, learned by four hospitals that keep their scans: threads send gradients, a server steps."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
wire = torch.float16
SITES, ROUNDS, SIDE = 4, 90, 12


def scans(n, offset=0.0):
    """Noisy volumes with a bright ball (lesion) and a bright rod (vessel) of less contrast."""
    axes = torch.stack(torch.meshgrid(*[torch.arange(SIDE).float()] * 3, indexing="ij"))
    centre = 2 + (SIDE - 4) * torch.rand(n, 3, 1, 1, 1)
    ball = ((axes - centre).square().sum(1) < (1.5 + torch.rand(n, 1, 1, 1)).square()).float()
    place = SIDE * torch.rand(n, 3, 1, 1, 1)
    rod = ((axes - place)[:, :2].square().sum(1) < 2.0).float()
    volume = 1.5 * torch.maximum(ball, 0.6 * rod) + 0.5 * torch.randn(n, SIDE, SIDE, SIDE) + offset
    return volume[:, None].to(device), ball[:, None].to(device)


def network():
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1)
    ).to(device)


def dice(model, volume, label):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        found = (model(volume) > 0).float()
    return (2 * (found * label).sum() / (found.sum() + label.sum())).item()


class Server:
    """Holds the common weights and Adam's averages, and steps by the mean of the gradients that the sites send."""

    def __init__(self, model, betas=(0.9, 0.98), eps=1e-8):
        self.weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.mean = {k: torch.zeros_like(v) for k, v in self.weights.items()}
        self.square = {k: torch.zeros_like(v, dtype=wire) for k, v in self.weights.items()}
        self.betas, self.eps, self.count = betas, eps, 0

    def step(self, gradients, lr):
        self.count += 1
        first, second = self.betas
        for name, weight in self.weights.items():
            gradient = torch.stack([each[name] for each in gradients]).float().mean(0)
            self.mean[name].lerp_(gradient, 1 - first)
            self.square[name].mul_(second).add_((1 - second) * gradient.square())
            spread = (self.square[name].float() / (1 - second**self.count)).sqrt()
            self.weights[name] = weight - lr / (1 - first**self.count) * self.mean[name] / (spread + self.eps)


class Site(threading.Thread):
    """A hospital: takes the weights and returns the gradient on some of its scans."""

    def __init__(self, number, data):
        super().__init__(daemon=True)
        self.data, self.inbox, self.outbox = data, queue.Queue(), queue.Queue()
        self.model = network()
        self.picks = torch.Generator().manual_seed(100 + number)

    def run(self):
        while (weights := self.inbox.get()) is not None:
            self.model.load_state_dict(weights)
            pick = torch.randint(len(self.data[0]), (4,), generator=self.picks).to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = self.model(self.data[0][pick])
            loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), self.data[1][pick], pos_weight=rare)
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            self.outbox.put(({k: (512 * p.grad).to(wire) for k, p in self.model.named_parameters()}, loss.item()))


rare = torch.tensor(4.0, device=device)
model = network()
server = Server(model)
sites = [Site(k, scans(48, 0.2 * k - 0.3)) for k in range(SITES)]
test = scans(48)
for site in sites:
    site.start()
for number in range(ROUNDS):
    answers = []
    for site in sites:
        site.inbox.put(server.weights)
        answers.append(site.outbox.get())
    server.step([{k: g.float() / 512 for k, g in gradient.items()} for gradient, _ in answers], lr=4e-3)
    if number % 18 == 17:
        model.load_state_dict(server.weights)
        print(f"round {number + 1} loss {sum(each for _, each in answers) / SITES:.4f} dice {dice(model, *test):.4f}")
for site in sites:
    site.inbox.put(None)
    site.join()
model.load_state_dict(server.weights)
print(f"METRIC {dice(model, *test):.5f}")
