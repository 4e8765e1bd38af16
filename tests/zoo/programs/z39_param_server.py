"""Toy asynchronous-style LM training: a parameter server thread owns the weights, a worker computes gradients."""
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CTX, DIM, STEPS, BATCH, LR = 32, 3, 24, 400, 64, 0.012


class NGramLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.fc = nn.Linear(CTX * DIM, 64)
        self.out = nn.Linear(64, VOCAB)

    def forward(self, ctx):
        return self.out(torch.relu(self.fc(self.tok(ctx).flatten(1))))


class ParameterServer(threading.Thread):
    """Receives gradients, applies SGD, answers with fresh weights. Everything on the wire is bf16."""

    def __init__(self, init):
        super().__init__(daemon=True)
        self.weights = [nn.Parameter(w.detach().clone().bfloat16()) for w in init]
        self.opt = torch.optim.SGD(self.weights, lr=LR)
        self.inbox, self.outbox = queue.Queue(), queue.Queue()
        self.outbox.put(self.snapshot())

    def snapshot(self):
        return [w.detach().clone() for w in self.weights]

    def run(self):
        while True:
            grads = self.inbox.get()
            if grads is None:
                return
            for w, g in zip(self.weights, grads):
                w.grad = g.to(w.dtype)
            self.opt.step()
            self.outbox.put(self.snapshot())


def worker(model, server, data):
    scaler_scale = 1.0
    for step in range(STEPS):
        fresh = server.outbox.get()
        with torch.no_grad():
            for p, w in zip(model.parameters(), fresh):
                p.copy_(w)
        i = torch.randint(0, len(data) - CTX - 1, (BATCH,))
        ctx = torch.stack([data[i + k] for k in range(CTX)], 1).to(DEVICE)
        y = data[i + CTX].to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(ctx), y)
        grads = torch.autograd.grad(loss * scaler_scale, list(model.parameters()))
        server.inbox.put([g.float() / scaler_scale for g in grads])
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step:4d} loss {loss.item():.4f}")
    server.inbox.put(None)


if __name__ == "__main__":
    torch.manual_seed(9)
    # a noisy second order Markov chain
    seq = [1, 2]
    noise = torch.rand(6000)
    rnd = torch.randint(0, VOCAB, (6000,))
    for n in range(6000):
        seq.append((seq[-1] + 1) % VOCAB if noise[n] < 0.85 else int(rnd[n]))
    model = NGramLM().to(DEVICE)
    server = ParameterServer(list(model.parameters()))
    server.start()
    worker(model, server, torch.tensor(seq))
    server.join()
