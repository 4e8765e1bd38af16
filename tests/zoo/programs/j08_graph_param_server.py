"""Node embeddings (skip-gram on a community graph): worker threads and a parameter server with row-wise Adagrad."""
import argparse
import threading
import torch
import torch.nn.functional as F

DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


def community_graph(n, groups, deg, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, groups, (n,), generator=g)
    same = (label[:, None] == label[None, :]).float()
    w = 0.12 + 0.88 * same
    w.fill_diagonal_(0)
    nbr = torch.multinomial(w, deg, generator=g)
    return label, nbr


class ParameterServer:
    """Owns the tables and their optimizer state; workers pull rows and push gradients for them."""

    def __init__(self, n, dim, lr, device, state_dtype, eps=1e-8):
        g = torch.Generator().manual_seed(17)
        self.tables = {k: (0.5 * torch.randn(n, dim, generator=g)).to(device) for k in ("node", "context")}
        self.state = {k: torch.zeros(n, 1, device=device, dtype=state_dtype) for k in self.tables}
        self.lr, self.eps = lr, eps
        self.lock = threading.Lock()
        self.pushes = 0

    def pull(self, name, idx):
        with self.lock:
            return self.tables[name][idx].clone()

    def push(self, name, idx, grad):
        rows, where = idx.unique(return_inverse=True)
        total = torch.zeros(len(rows), grad.shape[1], device=grad.device).index_add_(0, where, grad)
        with self.lock:
            state = self.state[name]
            state[rows] += total.pow(2).mean(1, keepdim=True).to(state.dtype)
            denom = state[rows].float().sqrt() + self.eps
            self.tables[name][rows] -= self.lr * total / denom
            self.pushes += 1


class Worker(threading.Thread):
    def __init__(self, rank, server, nbr, steps, batch, device, dtype, seed):
        super().__init__()
        self.rank, self.server, self.nbr = rank, server, nbr
        self.steps, self.batch, self.device, self.dtype = steps, batch, device, dtype
        self.g = torch.Generator().manual_seed(1000 * seed + rank)
        self.history = []

    def run(self):
        n, deg = self.nbr.shape
        for step in range(self.steps):
            u = torch.randint(0, n, (self.batch,), generator=self.g)
            v = self.nbr[u, torch.randint(0, deg, (self.batch,), generator=self.g)]
            neg = torch.randint(0, n, (128,), generator=self.g)
            ctx = torch.cat([v, neg])
            u, ctx = u.to(self.device), ctx.to(self.device)
            a = self.server.pull("node", u).requires_grad_()
            c = self.server.pull("context", ctx).requires_grad_()
            with torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype != torch.float32):
                pos = (a * c[: self.batch]).sum(1)
                neg_s = a @ c[self.batch:].t()
            loss = -F.logsigmoid(pos.float()).mean() - F.logsigmoid(-neg_s.float()).mean()
            (loss * 4096.0).backward()
            self.server.push("node", u, a.grad / 4096.0)
            self.server.push("context", ctx, c.grad / 4096.0)
            self.history.append(loss.item())
            if self.rank == 0 and step % 25 == 0:
                print(f"worker 0 step {step} loss {loss.item():.4f}")


def neighbour_purity(emb, label):
    e = F.normalize(emb.float(), dim=1)
    s = e @ e.t()
    s.fill_diagonal_(-2)
    near = s.topk(10, 1).indices
    return (label[near] == label[:, None]).float().mean().item()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="fp16", choices=DTYPES)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--lr", type=float, default=0.15)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    label, nbr = community_graph(1200, 5, 20, seed=3)
    server = ParameterServer(1200, 16, a.lr, device, DTYPES[a.precision])
    workers = [Worker(r, server, nbr, a.steps, 4096, device, DTYPES[a.precision], a.seed) for r in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    final = sum(sum(w.history[-10:]) for w in workers) / 20
    purity = neighbour_purity(server.tables["node"].cpu(), label)
    print(f"loss {final:.4f} neighbour purity {purity:.4f} pushes {server.pushes}")
    return {"loss": final, "purity": purity}


if __name__ == "__main__":
    main()
