import torch
from torch import nn
import torch.nn.functional as F


class Agent:
    """Actor-critic with an optimizer for the trunk and one for the heads."""

    def __init__(self, device):
        self.device = device
        self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()).to(device)
        self.pi, self.v = nn.Linear(64, 4).to(device), nn.Linear(64, 1).to(device)
        self.opt_trunk = torch.optim.SGD(self.trunk.parameters(), lr=0.05, momentum=0.9)
        self.opt_heads = torch.optim.SGD([*self.pi.parameters(), *self.v.parameters()], lr=0.05, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device)

    def parameters(self):
        for m in (self.trunk, self.pi, self.v):
            yield from m.parameters()

    def learn(self, s, best):
        with torch.autocast(self.device, dtype=torch.float16):
            h = self.trunk(s)
            dist = torch.distributions.Categorical(logits=self.pi(h).float())
            a = dist.sample()
            r = (a == best).float()
            v = self.v(h).squeeze(-1).float()
            adv = (r - v).detach()
            loss = -(dist.log_prob(a) * adv).mean() + 0.5 * F.mse_loss(v, r) - 0.01 * dist.entropy().mean()
        self.opt_trunk.zero_grad()
        self.opt_heads.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt_heads)
        nn.utils.clip_grad_norm_(self.parameters(), 0.5)
        self.scaler.step(self.opt_trunk)
        self.scaler.step(self.opt_heads)
        self.scaler.update()
        return r.mean().item()


def main():
    torch.manual_seed(0)
    agent = Agent("cuda" if torch.cuda.is_available() else "cpu")
    w = torch.randn(10, 4)
    rs = []
    for i in range(200):
        s = torch.randn(128, 10)
        rs.append(agent.learn(s.to(agent.device), (s @ w).argmax(1).to(agent.device)))
    print("reward first", sum(rs[:20]) / 20, "last", sum(rs[-20:]) / 20)


main()
