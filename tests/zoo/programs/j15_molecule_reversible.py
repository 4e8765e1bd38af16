"""Graph property regression with additive reversible layers; inputs of a layer are rebuilt going backwards."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
KIND = "cuda" if torch.cuda.is_available() else "cpu"


class NeighbourMix(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.own, self.near, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, adj):
        h = self.norm(x)
        return self.out(F.relu(self.own(h) + torch.bmm(adj, self.near(h))))


class ReversibleStack(torch.autograd.Function):
    """y1 = x1 + f(x2); y2 = x2 + g(y1).  Only the last pair is kept."""

    @staticmethod
    @torch.amp.custom_fwd(device_type=KIND)
    def forward(ctx, x1, x2, adj, layers, *params):
        for f, g in layers:
            x1 = x1 + f(x2, adj)
            x2 = x2 + g(x1, adj)
        ctx.save_for_backward(x1, x2, adj)
        ctx.layers, ctx.params = layers, params
        return x1, x2

    @staticmethod
    @torch.amp.custom_bwd(device_type=KIND)
    def backward(ctx, d1, d2):
        y1, y2, adj = ctx.saved_tensors
        grads = {}

        def pull(fn, at, d):
            with torch.enable_grad():
                leaf = at.detach().requires_grad_()
                out = fn(leaf, adj)
            ps = list(fn.parameters())
            got = torch.autograd.grad(out, [leaf] + ps, d.to(out.dtype))
            grads.update({id(p): q for p, q in zip(ps, got[1:])})
            return out.detach(), got[0]

        for f, g in reversed(ctx.layers):
            out, d = pull(g, y1, d2)
            y2, d1 = y2 - out, d1 + d
            out, d = pull(f, y2, d1)
            y1, d2 = y1 - out, d2 + d
        return (d1, d2, None, None) + tuple(grads[id(p)] for p in ctx.params)


class GraphNet(nn.Module):
    def __init__(self, kinds, dim, depth):
        super().__init__()
        self.emb = nn.Embedding(kinds, 2 * dim)
        self.f = nn.ModuleList(NeighbourMix(dim) for _ in range(depth))
        self.g = nn.ModuleList(NeighbourMix(dim) for _ in range(depth))
        self.read = nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, atoms, adj):
        x1, x2 = self.emb(atoms).chunk(2, -1)
        layers = list(zip(self.f, self.g))
        x1, x2 = ReversibleStack.apply(x1, x2, adj, layers, *self.f.parameters(), *self.g.parameters())
        return self.read(torch.cat([x1, x2], -1)).squeeze(-1).float().mean(1)


def molecules(n, size, kinds, seed):
    """The property sums what every atom feels from its neighbours and from theirs."""
    world = torch.Generator().manual_seed(90)
    w1, w2 = torch.randn(kinds, kinds, generator=world), torch.randn(kinds, kinds, generator=world)
    g = torch.Generator().manual_seed(seed)
    atoms = torch.randint(0, kinds, (n, size), generator=g)
    a = (torch.rand(n, size, size, generator=g) < 0.2).float().triu(1)
    a = a + a.transpose(1, 2)
    one = F.one_hot(atoms, kinds).float()
    near = (a @ one)
    y = (one @ w1 * near).sum(-1).tanh() + 0.5 * (one @ w2 * (a @ near)).sum(-1).mul(0.3).tanh()
    y = y.mean(1)
    return atoms, a / a.sum(-1, keepdim=True).clamp(min=1), (y - y.mean()) / y.std()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="bf16", choices=DTYPES)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--depth", type=int, default=6)
    a = ap.parse_args(argv)
    amp = a.precision != "fp32"
    train, test = molecules(6000, 14, 5, seed=1), molecules(1500, 14, 5, seed=2)
    torch.manual_seed(a.seed)
    model = GraphNet(5, 32, a.depth).to(KIND)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    g = torch.Generator().manual_seed(a.seed + 3)
    for step in range(a.steps):
        idx = torch.randint(0, 6000, (96,), generator=g)
        atoms, adj, y = (t[idx].to(KIND) for t in train)
        with torch.autocast(KIND, dtype=torch.bfloat16, enabled=amp):
            loss = F.mse_loss(model(atoms, adj), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad(), torch.autocast(KIND, dtype=torch.bfloat16, enabled=amp):
        mse = F.mse_loss(model(test[0].to(KIND), test[1].to(KIND)).cpu(), test[2]).item()
    print(f"test mse {mse:.4f}")
    return {"test_mse": mse, "loss": loss.item()}


if __name__ == "__main__":
    main()
