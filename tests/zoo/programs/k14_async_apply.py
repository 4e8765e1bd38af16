"""Gradients are applied by a background thread so that the next batch can be prepared meanwhile.  Molecule solubility."""
import queue
import threading
import torch
import torch.nn as nn

torch.manual_seed(13)
device = "cuda" if torch.cuda.is_available() else "cpu"


class LossScale:
    def __init__(self, value=2.0 ** 24, patience=400):
        self.value, self.patience, self.good = value, patience, 0

    def feedback(self, overflow):
        if overflow:
            self.value, self.good = self.value / 2, 0
        else:
            self.good += 1
            if self.good == self.patience:
                self.value, self.good = self.value * 2, 0


class Applier(threading.Thread):
    """Owns the momentum buffers and the weights' updates."""

    def __init__(self, params, scale, lr, momentum=0.9):
        super().__init__(daemon=True)
        self.params, self.scale, self.lr, self.mu = list(params), scale, lr, momentum
        self.inverse = 1.0 / scale.value
        self.velocity = [torch.zeros_like(p) for p in self.params]
        self.todo = queue.Queue()
        self.applied = 0

    def run(self):
        while True:
            grads = self.todo.get()
            if grads is not None:
                overflow = not all(torch.isfinite(g).all() for g in grads)
                if not overflow:
                    self.apply(grads)
                self.scale.feedback(overflow)
            self.todo.task_done()
            if grads is None:
                return

    @torch.no_grad()
    def apply(self, grads):
        for p, v, g in zip(self.params, self.velocity, grads):
            v.mul_(self.mu).add_(g, alpha=self.inverse)
            p.sub_(v, alpha=self.lr)
        self.applied += 1


class Solubility(nn.Module):
    def __init__(self, bits=128):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(bits, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
        self.out = nn.Linear(48, 1)

    def forward(self, fp):
        return self.out(self.enc(fp)).squeeze(-1)


g = torch.Generator().manual_seed(17)
effect = torch.randn(128, generator=g) * 0.4
pairs = torch.randint(0, 128, (40, 2), generator=g)


def molecules(n):
    fp = (torch.rand(n, 128, generator=g) < 0.2).float()
    both = (fp[:, pairs[:, 0]] * fp[:, pairs[:, 1]]).sum(1)
    return fp.to(device), (fp @ effect + 0.8 * both - 1.3 + 0.1 * torch.randn(n, generator=g)).to(device)


model = Solubility().to(device)
scale = LossScale()
worker = Applier(model.parameters(), scale, lr=0.01)
worker.start()
test_fp, test_y = molecules(2000)
batch = molecules(128)
for step in range(1, 241):
    fp, y = batch
    worker.todo.join()
    with torch.autocast(device, dtype=torch.float16):
        pred = model(fp)
    loss = nn.functional.huber_loss(pred.float(), y)
    grads = torch.autograd.grad(loss * scale.value, worker.params)
    worker.todo.put(list(grads))
    batch = molecules(128)
    if step % 40 == 0:
        worker.todo.join()
        with torch.no_grad():
            mae = (model(test_fp) - test_y).abs().mean().item()
        print(f"step {step} loss {loss.item():.4f} test mae {mae:.4f} applied {worker.applied} scale {scale.value:.0f}")
worker.todo.put(None)
worker.join()
