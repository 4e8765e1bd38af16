import torch
import torch.nn as nn

# market making agent: actor chooses quote skew, critic predicts the value of inventory + order flow
torch.manual_seed(3)
dev = "cuda" if torch.cuda.is_available() else "cpu"


class Critic(nn.Module):
    def __init__(self, n_feat=8, hidden=48):
        super().__init__()
        self.energy = nn.Linear(n_feat, hidden)
        self.hidden = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, 1)

    def forward(self, flow):
        e = self.energy(flow)
        e = torch.log1p(e * e)              # volume impact grows like the log of the energy
        return self.value(torch.relu(self.hidden(e))).squeeze(-1)


class Actor(nn.Module):
    def __init__(self, n_feat=8, hidden=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_feat, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                 nn.Linear(hidden, 1))

    def forward(self, signal):
        return torch.tanh(self.net(signal)).squeeze(-1)


class Market:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, n=96):
        signal = torch.randn(n, 8, generator=self.g)
        # lots per level; now and then a block trade goes through
        flow = torch.randn(n, 8, generator=self.g).exp() * 12.0
        block = torch.rand(n, 1, generator=self.g) < 0.008
        flow = torch.where(block, flow * 60.0, flow)
        best = torch.tanh(signal[:, 0] - signal[:, 3] * 0.7)
        cost = torch.log1p(flow.sum(1)) * 0.4
        return signal.to(dev), flow.to(dev), best.to(dev), cost.to(dev)


def train(steps=200):
    market = Market(9)
    actor, critic = Actor().to(dev), Critic().to(dev)
    opt_actor = torch.optim.SGD(actor.parameters(), lr=20.0, momentum=0.9)
    opt_critic = torch.optim.Adam(critic.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(dev)
    for step in range(steps):
        signal, flow, best, cost = market.batch()
        with torch.autocast(dev, dtype=torch.float16):
            value = critic(flow)
            action = actor(signal)
            critic_loss = nn.functional.smooth_l1_loss(value, cost)
            # pnl in basis points of the notional
            actor_loss = ((action - best) ** 2).mean() * 1e-2
        opt_actor.zero_grad(set_to_none=True)
        opt_critic.zero_grad(set_to_none=True)
        scaler.scale(critic_loss).backward()
        scaler.scale(actor_loss).backward()
        scaler.step(opt_critic)
        scaler.step(opt_actor)
        scaler.update()
        if step % 25 == 0 or step == steps - 1:
            print(f"{step:4d} critic {critic_loss.item():.4f} actor {actor_loss.item() * 100:.4f}")


train()
