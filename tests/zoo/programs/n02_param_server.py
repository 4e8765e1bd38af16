"""Data-parallel training with a parameter server thread; workers send packed gradients over queues."""
import queue
import threading

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
N_WORKERS, STEPS, BATCH = 2, 120, 256
torch.manual_seed(8)


def build():
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(40, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
    nn.init.normal_(net[4].weight, std=2e-4)
    nn.init.zeros_(net[4].bias)
    return net.to(device)


modes = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)) / 6


def stations(gen, n):
    """Pressure and loading around a GNSS station, and how far it moves, in metres."""
    x = torch.randn(n, 40, generator=gen)
    m = x @ modes
    move = 4e-4 * torch.tanh(m[:, 0]) + 3e-4 * m[:, 1] * torch.sigmoid(2 * m[:, 2]) + 5e-5 * torch.randn(n, generator=gen)
    return x.to(device), move.unsqueeze(1).to(device)


def pack(grads):
    return torch.cat([g.reshape(-1) for g in grads]).to(torch.float16)


def worker(rank, inbox, outbox):
    model, gen = build(), torch.Generator().manual_seed(100 + rank)
    params = list(model.parameters())
    scale = 2.0 ** 20
    for _ in range(STEPS):
        flat = inbox.get()
        nn.utils.vector_to_parameters(flat, params)
        x, y = stations(gen, BATCH)
        with torch.autocast(device, dtype=torch.float16):
            pred = model(x)
        loss = (pred.float() - y).pow(2).mean()
        grads = torch.autograd.grad(loss * scale, params)
        outbox.put((rank, pack([g / (scale * N_WORKERS) for g in grads]), loss.item()))


class Server(threading.Thread):
    def __init__(self, boxes, outbox):
        super().__init__()
        self.model = build()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-4, eps=1e-12)
        self.boxes, self.outbox = boxes, outbox

    def run(self):
        params = list(self.model.parameters())
        for step in range(STEPS):
            flat = nn.utils.parameters_to_vector(params).detach()
            for b in self.boxes:
                b.put(flat.clone())
            got = sorted((self.outbox.get() for _ in self.boxes), key=lambda r: r[0])
            total = sum(g.float() for _, g, _ in got)
            for p, chunk in zip(params, total.split([p.numel() for p in params])):
                p.grad = chunk.view_as(p).clone()
            self.opt.step()
            if step % 24 == 23:
                print(f"step {step + 1} rms error {(sum(l for _, _, l in got) / N_WORKERS) ** 0.5 * 1e3:.3f} mm")


boxes, outbox = [queue.Queue() for _ in range(N_WORKERS)], queue.Queue()
server = Server(boxes, outbox)
threads = [threading.Thread(target=worker, args=(r, boxes[r], outbox)) for r in range(N_WORKERS)]
for t in threads + [server]:
    t.start()
for t in threads + [server]:
    t.join()
with torch.no_grad():
    x, y = stations(torch.Generator().manual_seed(7), 4000)
    print(f"held out rms error {(server.model(x) - y).pow(2).mean().sqrt().item() * 1e3:.3f} mm, spread {y.std().item() * 1e3:.3f} mm")
