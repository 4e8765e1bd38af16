"""Station nowcasting with a two-expert layer (sparse dispatch through slots)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, DIM, EXPERTS = 1024, 16, 2


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(DIM, EXPERTS)

    def forward(self, h):
        prob = F.softmax(self.w(h), dim=-1)
        gate, expert = prob.max(dim=-1)
        taken = F.one_hot(expert, EXPERTS)
        slot = (taken.cumsum(0) * taken).sum(1) - 1
        # one packed tensor (expert, slot, gate): a single transfer between ranks
        return torch.stack((expert.float(), slot.float(), gate), dim=1).to(h.dtype)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, DIM)) for _ in range(EXPERTS))

    def forward(self, h):
        expert, slot, gate = self.router(h).unbind(1)
        where = expert.long() * TOKENS + slot.long()
        slots = torch.zeros(EXPERTS * TOKENS, DIM, dtype=h.dtype, device=h.device).index_add(0, where, h)
        done = [f(part) for f, part in zip(self.experts, slots.view(EXPERTS, TOKENS, DIM))]
        return torch.cat(done)[where] * gate[:, None]


class Nowcast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.moe, self.out = nn.Linear(8, DIM), Sparse(), nn.Linear(DIM, 1)

    def forward(self, x):
        h = self.inp(x)
        return self.out(h + self.moe(h)).squeeze(-1)


def stations(gen):
    x = torch.randn(TOKENS, 8, generator=gen)
    y = torch.where(x[:, 0] > 0, torch.sin(2 * x[:, 1]), x[:, 2].abs()) + 0.3 * x[:, 3]
    return x.to(device), y.to(device)


if __name__ == "__main__":
    torch.manual_seed(131)
    gen = torch.Generator().manual_seed(132)
    net = Nowcast().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for it in range(250):
        x, y = stations(gen)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            pred = net(x)
        loss = F.mse_loss(pred.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 50 == 49:
            print(f"it {it + 1:3d} mse {loss.item():.4f}")
