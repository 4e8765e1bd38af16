"""Deflection of a beam (in metres) under random loads; encoder and decoder run as two pipeline stages."""
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
LOADS, POINTS, STEPS, BATCH = 32, 64, 300, 128


def beams(n):
    amount = torch.randn(n, LOADS)
    source = (torch.arange(LOADS) + 0.5) / LOADS
    place = torch.linspace(0, 1, POINTS)
    low, high = torch.minimum(source[:, None], place), torch.maximum(source[:, None], place)
    green = low * (1 - high) * (2 * high - high ** 2 - low ** 2) / 6
    return amount.to(device), (2e-3 * amount @ green).to(device)


class Stage(threading.Thread):
    def __init__(self, module, inbox, outbox):
        super().__init__(daemon=True)
        self.module, self.inbox, self.outbox = module, inbox, outbox
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, eps=1e-12)
        self.losses = []

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                return
            hidden, target = item
            hidden.requires_grad_(True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.mse_loss(self.module(hidden).float(), target)
            self.optimizer.zero_grad()
            loss.backward()
            self.outbox.put(hidden.grad.half())
            self.optimizer.step()
            self.losses.append(loss.item())


def main():
    amount, bend = beams(2048)
    vamount, vbend = beams(512)
    encoder = nn.Sequential(nn.Linear(LOADS, 32), nn.Tanh(), nn.Linear(32, 3)).to(device)
    decoder = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, POINTS)).to(device)
    with torch.no_grad():
        decoder[2].weight.mul_(0.05)
        decoder[2].bias.zero_()
    forward_queue, backward_queue = queue.Queue(), queue.Queue()
    stage = Stage(decoder, forward_queue, backward_queue)
    stage.start()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3, eps=1e-12)
    for step in range(STEPS):
        pick = torch.randint(0, len(amount), (BATCH,), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = encoder(amount[pick])
        forward_queue.put((hidden.detach(), bend[pick]))
        grad = backward_queue.get()
        optimizer.zero_grad()
        hidden.backward(grad.to(hidden.dtype))
        optimizer.step()
    forward_queue.put(None)
    stage.join()
    print("losses", [f"{v:.3e}" for v in stage.losses[::60]])
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        error = decoder(encoder(vamount)).float() - vbend
    print("METRIC", round((error.norm() / vbend.norm()).item(), 4))


if __name__ == "__main__":
    main()
