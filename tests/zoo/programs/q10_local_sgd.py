"""Local SGD by hand: every replica trains on its own shard, then an outer step moves the anchor."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORLD, INNER, ROUNDS = 2, 3, 90
OUTER_LR = 0.15


def build():
    return nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 12)).to(device)


class Anchor:
    """The global weights, which all replicas pull at the start of a round."""

    def __init__(self, model, dtype=torch.bfloat16):
        self.weights = [p.detach().clone().to(dtype) for p in model.parameters()]

    @torch.no_grad()
    def pull(self, model):
        for p, w in zip(model.parameters(), self.weights):
            p.copy_(w)

    @torch.no_grad()
    def push(self, models):
        for i, w in enumerate(self.weights):
            local = torch.stack([list(m.parameters())[i] for m in models]).mean(0)
            delta = w.float() - local
            w.sub_((OUTER_LR * delta).to(w.dtype))


rule = torch.randn(32, 12)


def shard_batch(rank, n=64):
    x = torch.randn(n, 32, device=device) + 0.3 * rank
    y = (x @ rule.to(device) + 0.5 * torch.sin(3 * x[:, :12])).argmax(1)
    return x, y


replicas = [build() for _ in range(WORLD)]
anchor = Anchor(replicas[0])
inner = [torch.optim.SGD(m.parameters(), lr=0.03, momentum=0.5) for m in replicas]
scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**12) for _ in replicas]

for rnd in range(ROUNDS):
    total = 0.0
    for rank, (model, opt, scaler) in enumerate(zip(replicas, inner, scalers)):
        anchor.pull(model)
        for _ in range(INNER):
            x, y = shard_batch(rank)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        total += loss.item() / WORLD
    anchor.push(replicas)
    if rnd % 20 == 0:
        print(f"round {rnd:3d}  loss {total:.4f}")

final = build()
anchor.pull(final)
x, y = shard_batch(1, 3000)
with torch.no_grad():
    out = final(x)
print(f"final loss {F.cross_entropy(out, y).item():.4f}  accuracy {(out.argmax(1) == y).float().mean().item():.3f}")
