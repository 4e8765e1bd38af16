"""Neural-linear bandit: a small network gives features, each arm keeps a Bayesian linear head on them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CONTEXT, FEATURES, ARMS = 20, 32, 4
ROUNDS, PER_ROUND = 50, 32


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CONTEXT, 64), nn.ReLU(), nn.Linear(64, FEATURES), nn.Tanh())
        self.readout = nn.Linear(FEATURES, ARMS)

    def forward(self, context):
        return self.body(context)


class ArmPosterior(nn.Module):
    """Inverse design matrices of all arms, kept by rank-one updates."""

    def __init__(self, arms, dim, ridge=0.01, bonus=0.5):
        super().__init__()
        self.register_buffer("cov", torch.eye(dim).repeat(arms, 1, 1) / ridge)
        self.register_buffer("moment", torch.zeros(arms, dim))
        self.register_buffer("pulls", torch.zeros(arms, dtype=torch.long))
        self.bonus = bonus

    def width(self, z):
        var = torch.einsum("bi,aij,bj->ba", z, self.cov, z)
        return var.clamp(min=0).sqrt()

    def score(self, z):
        theta = torch.einsum("aij,aj->ai", self.cov, self.moment)
        return z @ theta.T + self.bonus * self.width(z)

    def observe(self, arm, z, reward):
        v = self.cov[arm] @ z
        gain = 1.0 + z @ v
        self.cov[arm] -= torch.outer(v, v) / gain
        self.moment[arm] += reward * z
        self.pulls[arm] += 1


class Clicks:
    """Contextual rewards with one hidden direction per arm."""

    def __init__(self, generator):
        self.generator = generator
        self.truth = torch.randn(ARMS, CONTEXT, generator=generator) / CONTEXT**0.5

    def contexts(self, n):
        return torch.randn(n, CONTEXT, generator=self.generator)

    def expected(self, context):
        return torch.tanh(context @ self.truth.T)


def main():
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(11)
    env = Clicks(generator)
    encoder = Encoder().to(device)
    posterior = ArmPosterior(ARMS, FEATURES).to(device)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    held_out = env.contexts(256).to(device)
    regret = 0.0

    for step in range(ROUNDS):
        context = env.contexts(PER_ROUND).to(device)
        expected = env.expected(context.cpu()).to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            with torch.no_grad():
                z = encoder(context)
                choice = posterior.score(z).argmax(1)
                explore = torch.rand(PER_ROUND, generator=generator).to(device) < 0.25
                choice = torch.where(explore, torch.randint(ARMS, (PER_ROUND,), generator=generator).to(device), choice)
                noise = 0.1 * torch.randn(PER_ROUND, generator=generator).to(device)
                reward = expected.gather(1, choice[:, None]).squeeze(1) + noise
                for i in range(PER_ROUND):
                    posterior.observe(choice[i], z[i], reward[i])
            predicted = encoder.readout(encoder(context)).gather(1, choice[:, None]).squeeze(1)
            loss = F.mse_loss(predicted, reward)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        regret += (expected.max(1).values - expected.gather(1, choice[:, None]).squeeze(1)).sum().item()
        if step % 10 == 9:
            print(f"round {step + 1}: loss {loss.item():.4f} regret {regret:.1f}")

    with torch.no_grad():
        width = posterior.width(encoder(held_out))
    print(f"pulls {posterior.pulls.tolist()} mean width {width.mean().item():.4f}")
    spectrum = torch.linalg.eigvalsh(0.5 * (posterior.cov + posterior.cov.mT))
    print(f"eigenvalues of cov from {spectrum.min().item():.4f} to {spectrum.max().item():.4f}")


if __name__ == "__main__":
    main()
