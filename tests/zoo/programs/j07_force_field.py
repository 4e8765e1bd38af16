"""Learning a potential for small clusters from energies and forces (forces by differentiating the energy)."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F


def morse(pos):
    """Reference potential: pairwise Morse, in electronvolt; positions in angstrom."""
    d = pos[:, :, None] - pos[:, None]
    n = pos.shape[1]
    i, j = torch.triu_indices(n, n, 1)
    r = d[:, i, j].norm(dim=-1)
    return (0.8 * (1 - torch.exp(-1.2 * (r - 1.5))) ** 2 - 0.8).sum(1)


def clusters(count, atoms, seed):
    g = torch.Generator().manual_seed(seed)
    base = torch.tensor([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]).float()[:atoms] * 1.5
    pos = base + 0.2 * torch.randn(count, atoms, 3, generator=g)
    pos.requires_grad_()
    e = morse(pos)
    f = -torch.autograd.grad(e.sum(), pos)[0]
    return pos.detach(), e.detach(), f


class PairPotential(nn.Module):
    def __init__(self, atoms, basis=16, hidden=48):
        super().__init__()
        i, j = torch.triu_indices(atoms, atoms, 1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)
        self.register_buffer("centre", torch.linspace(0.8, 3.2, basis))
        self.net = nn.Sequential(nn.Linear(basis, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 1))
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, pos):
        r = (pos[:, self.i] - pos[:, self.j]).norm(dim=-1, keepdim=True)
        rbf = torch.exp(-18.0 * (r - self.centre) ** 2)
        return self.net(rbf).squeeze(-1).sum(1) + self.shift


class ForceMatching:
    def __init__(self, model, energy_weight):
        self.model, self.energy_weight = model, energy_weight

    def __call__(self, pos, energy, force):
        pos = pos.detach().requires_grad_()
        e = self.model(pos)
        atoms = pos.shape[0] * pos.shape[1]
        slope = torch.autograd.grad((e / atoms).mean(), pos, create_graph=True)[0]
        f = -slope * atoms * len(e)
        loss_f = F.mse_loss(f, force)
        loss_e = F.mse_loss(e, energy)
        return loss_f + self.energy_weight * loss_e, loss_f, loss_e


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="fp16", choices=["fp16", "fp32"])
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--energy-weight", type=float, default=0.01)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = a.precision == "fp16"
    train = [t.to(device) for t in clusters(2048, 6, seed=1)]
    test = [t.to(device) for t in clusters(512, 6, seed=2)]
    torch.manual_seed(a.seed)
    model = PairPotential(6).to(device)
    criterion = ForceMatching(model, a.energy_weight)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 8, growth_interval=100, enabled=amp)
    g = torch.Generator().manual_seed(a.seed + 1)
    for step in range(a.steps):
        idx = torch.randint(0, 2048, (a.batch,), generator=g).to(device)
        with torch.autocast(device, dtype=torch.float16, enabled=amp):
            loss, loss_f, loss_e = criterion(*(t[idx] for t in train))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} force {loss_f.item():.4f} energy {loss_e.item():.4f}")
    with torch.autocast(device, dtype=torch.float16, enabled=amp):
        _, loss_f, loss_e = criterion(*test)
    print(f"test force mse {loss_f.item():.4f} energy mse {loss_e.item():.4f} scale {scaler.get_scale():g}")
    return {"force": loss_f.item(), "energy": loss_e.item(), "scale": scaler.get_scale()}


if __name__ == "__main__":
    main()
