"""Elastic averaging for a next-word model: worker threads train replicas, a server keeps the centre between them."""
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CONTEXT, DIM, WORKERS, ROUNDS, LOCAL_STEPS, PULL = 60, 2, 32, 3, 800, 1, 0.002
table = torch.softmax(torch.randn(VOCAB, VOCAB) * 2.0, dim=-1)


def corpus(length, generator):
    tokens = [0]
    for _ in range(length):
        tokens.append(torch.multinomial(table[tokens[-1]], 1, generator=generator).item())
    return torch.tensor(tokens, device=device).unfold(0, CONTEXT + 1, 1)


def build():
    return nn.Sequential(nn.Embedding(VOCAB, DIM), nn.Flatten(), nn.Linear(CONTEXT * DIM, 128), nn.GELU(),
                         nn.Linear(128, VOCAB)).to(device)


def loss_of(model, rows):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.cross_entropy(model(rows[:, :-1]), rows[:, -1])


class Server:
    def __init__(self, model):
        self.weights = {k: v.detach().clone().to(torch.bfloat16) for k, v in model.state_dict().items()}

    def pull(self, model):
        model.load_state_dict({k: v.float() for k, v in self.weights.items()})

    def merge(self, replicas):
        for name, centre in self.weights.items():
            for replica in replicas:
                centre.add_((replica[name] - centre).to(centre.dtype), alpha=PULL)


def worker(rank, rows, tasks, results):
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    picks = torch.Generator().manual_seed(100 + rank)
    model.load_state_dict(tasks.get())
    while (centre := tasks.get()) is not None:
        for _ in range(LOCAL_STEPS):
            batch = rows[torch.randint(0, len(rows), (96,), generator=picks).to(device)]
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.lerp_(centre[name], PULL)
        results.put((rank, {k: v.clone() for k, v in model.state_dict().items()}))


shards = [corpus(4000, torch.Generator().manual_seed(r)) for r in range(WORKERS)]
held_out = corpus(3000, torch.Generator().manual_seed(99))
model = build()
server = Server(model)
tasks, results = [queue.Queue() for _ in range(WORKERS)], queue.Queue()
threads = []
for rank in range(WORKERS):
    threads.append(threading.Thread(target=worker, args=(rank, shards[rank], tasks[rank], results)))
    tasks[rank].put({k: v.clone() for k, v in model.state_dict().items()})
    threads[-1].start()
for round_ in range(ROUNDS):
    server.pull(model)
    for q in tasks:
        q.put({k: v.clone() for k, v in model.state_dict().items()})
    got = dict(results.get() for _ in range(WORKERS))
    server.merge([got[rank] for rank in range(WORKERS)])
    if round_ % 200 == 0:
        print(f"round {round_} held-out {loss_of(model, held_out).item():.4f}")
for q, thread in zip(tasks, threads):
    q.put(None)
    thread.join()
server.pull(model)
with torch.no_grad():
    print("METRIC", round(loss_of(model, held_out).exp().item(), 3))
