# total energies of toy molecules with a dense message passing network
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MPNN(nn.Module):
    def __init__(self, n_types=5, d=32, rounds=2):
        super().__init__()
        self.embed = nn.Embedding(n_types, d)
        self.msg = nn.ModuleList(nn.Linear(d, d) for _ in range(rounds))
        self.upd = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(rounds))
        self.atom_energy = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, types, adj):
        h = self.embed(types)
        for msg, upd in zip(self.msg, self.upd):
            m = torch.bmm(adj, msg(h))
            h = h + torch.tanh(upd(torch.cat([h, m.to(h.dtype)], -1)))
        return self.atom_energy(h).float().sum((1, 2))


def make_set(n, atoms=10):
    g = torch.Generator().manual_seed(9)
    types = torch.randint(0, 5, (n, atoms), generator=g)
    a = (torch.rand(n, atoms, atoms, generator=g) < 0.25).float().triu(1)
    adj = a + a.transpose(1, 2)
    e_type = torch.tensor([-1.0, -3.0, 2.0, 0.5, 4.0])
    pair = torch.randn(5, 5, generator=g)
    onehot = nn.functional.one_hot(types, 5).float()
    e = e_type[types].sum(1) + torch.einsum("nij,nia,njb,ab->n", adj, onehot, onehot, pair + pair.t()) / 4
    return types, adj / 3, e * 1.5


def train_epoch(model, opt, data, perm, bs=64):
    scaler = torch.amp.GradScaler(device)
    model.train()
    total, n = 0.0, 0
    types, adj, e = data
    for i in range(0, len(perm), bs):
        idx = perm[i:i + bs]
        t, a, y = types[idx].to(device), adj[idx].to(device), e[idx].to(device)
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device, dtype=torch.float16):
            pred = model(t, a)
        loss = (pred - y).pow(2).sum()      # summed, so the rate does not depend on the batch size
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        total += loss.item()
        n += len(idx)
    return total / n


def main():
    torch.manual_seed(1)
    data = make_set(64 * 16)
    model = MPNN().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(12):
        mse = train_epoch(model, opt, data, torch.randperm(64 * 16))
        if epoch % 3 == 0:
            print(f"epoch {epoch}: mse {mse:.3f}")
    print(f"FINAL loss={mse:.4f}")


main()
