"""World model of a swarm of pendulums: a deep latent transition with momentum residual blocks.

The blocks are invertible, so no activations are kept: the backward pass rebuilds them from the output.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

BODIES, DIM, DEPTH, GAMMA = 4, 48, 24, 0.7
BATCH, HORIZON, STEPS = 256, 2, 130


class MomentumStack(torch.autograd.Function):
    """v <- g v + (1 - g) f_k(x);  x <- x + v   for k = 1..K, inverted layer by layer in backward."""

    @staticmethod
    def forward(ctx, x, v, blocks, *params):
        with torch.no_grad():
            for f in blocks:
                v = GAMMA * v + (1 - GAMMA) * f(x)
                x = x + v
        ctx.blocks, ctx.n = blocks, len(params)
        ctx.cast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
        ctx.save_for_backward(x, v)
        return x, v

    @staticmethod
    def backward(ctx, gx, gv):
        x, v = ctx.saved_tensors
        found = {}
        for f in reversed(ctx.blocks):
            x = x - v
            with torch.enable_grad(), torch.autocast(x.device.type, dtype=ctx.cast[1], enabled=ctx.cast[0]):
                x_in = x.detach().requires_grad_(True)
                y = f(x_in)
            gv = gv + gx
            weights = list(f.parameters())
            gs = torch.autograd.grad(y, [x_in, *weights], (1 - GAMMA) * gv.to(y.dtype))
            v = (v - (1 - GAMMA) * y.detach()) / GAMMA
            gx, gv = gx + gs[0], GAMMA * gv
            found.update(zip(weights, gs[1:]))
        return (gx, gv, None, *[found[p] for f in ctx.blocks for p in f.parameters()])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.a, self.b = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.b(F.silu(self.a(self.norm(x))))


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(2 * BODIES, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.decode = nn.Linear(DIM, 2 * BODIES)

    def forward(self, obs):
        x = self.encode(obs)                 # the residual stream has the type of the encoder's output
        params = [p for b in self.blocks for p in b.parameters()]
        x, _ = MomentumStack.apply(x, torch.zeros_like(x), list(self.blocks), *params)
        return obs + self.decode(x)


def simulate(gen, n, dt=0.15):
    """Coupled pendulums: state at t, t+1 .. t+HORIZON."""
    th, om = 1.5 * torch.randn(n, BODIES, generator=gen), torch.randn(n, BODIES, generator=gen)
    states = [torch.cat([th, om], 1)]
    for _ in range(HORIZON):
        for _ in range(4):
            pull = torch.roll(th, 1, 1) + torch.roll(th, -1, 1) - 2 * th
            om = om + dt / 2 * (-torch.sin(th) * 2 + pull - 0.05 * om)
            th = th + dt / 2 * om
        states.append(torch.cat([th, om], 1))
    return states


def rollout_loss(model, states, device):
    s, loss = states[0].to(device), 0.0
    with torch.autocast(device, dtype=torch.bfloat16):
        for target in states[1:]:
            s = model(s)
            loss = loss + F.mse_loss(s.float(), target.to(device))
    return loss / HORIZON


def main(seed=0):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed + 1)
    model = WorldModel().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=STEPS)
    log = []
    for step in range(STEPS):
        loss = rollout_loss(model, simulate(gen, BATCH), device)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        log.append(loss.item())
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step:3d}  rollout mse {log[-1]:.4f}")
    return model, sum(log[-10:]) / 10


if __name__ == "__main__":
    main()
