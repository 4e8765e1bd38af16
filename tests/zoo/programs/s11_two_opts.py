import torch
from torch import nn
import torch.nn.functional as F


class SAC:
    """Critic every step, actor every third; one scaler."""

    def __init__(self, device):
        self.device = device
        self.actor = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2), nn.Tanh()).to(device)
        self.critic = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
        self.oa = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.oc = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
        self.t = 0

    def q(self, s, a):
        return self.critic(torch.cat([s, a.to(s.dtype)], 1)).squeeze(1)

    def update(self, s, a, r):
        with torch.autocast(self.device, dtype=torch.float16):
            lc = F.mse_loss(self.q(s, a).float(), r)
        self.oc.zero_grad(set_to_none=True)
        self.scaler.scale(lc).backward()
        self.scaler.unscale_(self.oc)
        nn.utils.clip_grad_norm_(self.critic.parameters(), 5.0)
        self.scaler.step(self.oc)
        la = None
        if self.t % 3 == 0:
            for p in self.critic.parameters():
                p.requires_grad_(False)
            with torch.autocast(self.device, dtype=torch.float16):
                la = -self.q(s, self.actor(s)).float().mean()
            self.oa.zero_grad(set_to_none=True)
            self.scaler.scale(la).backward()
            self.scaler.unscale_(self.oa)
            nn.utils.clip_grad_norm_(self.actor.parameters(), 5.0)
            self.scaler.step(self.oa)
            for p in self.critic.parameters():
                p.requires_grad_(True)
        self.scaler.update()
        self.t += 1
        return lc.item()


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
agent = SAC(device)
w = torch.randn(6, 2, device=device) * 0.5
for i in range(150):
    s, a = torch.randn(64, 6, device=device), torch.rand(64, 2, device=device) * 2 - 1
    r = -((a - torch.tanh(s @ w)) ** 2).sum(1)
    lc = agent.update(s, a, r)
with torch.no_grad():
    s = torch.randn(512, 6, device=device)
    print("critic", lc, "actor error", ((agent.actor(s) - torch.tanh(s @ w)) ** 2).sum(1).mean().item())
