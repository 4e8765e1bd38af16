"""Neural-linear Thompson sampling for news recommendation (Riquelme et al., 2018), simulated clicks-through value.

A feature net is fitted to logged traffic; online we keep one Bayesian linear model per article on its last layer.
"""
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
N_ARMS, D_CTX, D_FEAT, USERS, ROUNDS, NOISE = 6, 12, 24, 64, 600, 0.3


class Simulator:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(D_CTX, 64), nn.Tanh(), nn.Linear(64, N_ARMS)).to(device)
        for layer in (self.net[0], self.net[2]):
            nn.init.normal_(layer.weight, std=1.2 / layer.in_features**0.5)

    def contexts(self, n):
        return torch.randn(n, D_CTX, device=device)

    @torch.no_grad()
    def values(self, ctx):
        return self.net(ctx)


class FeatureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D_CTX, 96), nn.ReLU(), nn.Linear(96, D_FEAT - 1), nn.ReLU())
        self.head = nn.Linear(D_FEAT - 1, N_ARMS)

    def features(self, ctx):
        h = self.body(ctx)
        return torch.cat([h, torch.ones_like(h[:, :1])], 1)

    def forward(self, ctx):
        return self.head(self.body(ctx))


class LinearPosterior:
    """Precision matrices and moment vectors of all articles; theta_a ~ N(A_a^-1 b_a, noise^2 A_a^-1)."""

    def __init__(self, prior=1.0):
        eye = torch.eye(D_FEAT, device=device)
        self.A = (prior * eye).repeat(N_ARMS, 1, 1).to(torch.bfloat16)
        self.b = torch.zeros(N_ARMS, D_FEAT, device=device)

    def update(self, feats, arms, rewards):
        mask = torch.nn.functional.one_hot(arms, N_ARMS).to(feats.dtype)
        self.A += torch.einsum("na,ni,nj->aij", mask, feats, feats)
        self.b += torch.einsum("na,ni,n->ai", mask, feats, rewards)

    def sample(self, n):
        chol, info = torch.linalg.cholesky_ex(self.A.float())
        mean = torch.cholesky_solve(self.b.unsqueeze(-1), chol)
        z = torch.randn(N_ARMS, D_FEAT, n, device=device)
        noise = torch.linalg.solve_triangular(chol.transpose(1, 2), z, upper=True)
        return mean + NOISE * noise  # arms x features x n


sim, net = Simulator(), FeatureNet().to(device)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
log_ctx = sim.contexts(4096)
log_arm = torch.randint(N_ARMS, (4096,), device=device)
log_rew = sim.values(log_ctx).gather(1, log_arm[:, None])[:, 0] + NOISE * torch.randn(4096, device=device)
for step in range(2500):
    pick = torch.randint(4096, (256,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pred = net(log_ctx[pick]).gather(1, log_arm[pick, None])[:, 0]
        loss = nn.functional.mse_loss(pred, log_rew[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 500 == 0:
        print(f"pretrain {step} mse {loss.item():.3f}")

posterior, regret, late = LinearPosterior(), 0.0, []
for t in range(ROUNDS):
    ctx = sim.contexts(USERS)
    values = sim.values(ctx)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        feats = net.features(ctx)
    feats = feats.float()
    theta = posterior.sample(USERS)
    arms = torch.einsum("ni,ain->na", feats, theta).argmax(1)
    chosen = values.gather(1, arms[:, None])[:, 0]
    posterior.update(feats, arms, chosen + NOISE * torch.randn(USERS, device=device))
    gap = (values.max(1).values - chosen).mean().item()
    regret += gap
    late.append(gap)
    if t % 100 == 99:
        print(f"round {t + 1} regret/user {gap:.3f} cumulative {regret:.2f}")
print("METRIC", sum(late[-50:]) / 50)
