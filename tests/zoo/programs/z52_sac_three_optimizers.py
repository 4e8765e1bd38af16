"""SAC-flavoured learner on a logged buffer: three optimizers, one scaler, the temperature stays out of it."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def mlp(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class SAC:
    def __init__(self, obs=8, act=2):
        self.q1, self.q2 = mlp(obs + act, 1).to(device), mlp(obs + act, 1).to(device)
        self.pi = mlp(obs, 2 * act).to(device)
        self.log_alpha = torch.zeros(1, device=device, requires_grad=True)
        self.opt_q = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=1e-3)
        self.opt_pi = torch.optim.SGD(self.pi.parameters(), lr=0.02, momentum=0.9)
        self.opt_alpha = torch.optim.SGD([self.log_alpha], lr=0.02)
        self.scaler = torch.amp.GradScaler(device, init_scale=4096.0)
        self.target_entropy = -float(act)

    def sample(self, obs, noise):
        with torch.autocast(device, dtype=torch.float16):
            mu, ls = self.pi(obs).chunk(2, -1)
        mu, ls = mu.float(), ls.float().clamp(-4, 1)
        u = mu + ls.exp() * noise
        a = torch.tanh(u)
        logp = (-0.5 * noise ** 2 - ls - 0.919 - 2 * (0.6931 - u - F.softplus(-2 * u))).sum(-1, keepdim=True)
        return a, logp

    def q(self, obs, a):
        with torch.autocast(device, dtype=torch.float16):
            x = torch.cat([obs, a], -1)
            return self.q1(x).float(), self.q2(x).float()

    def update(self, obs, act, rew, noise):
        q1, q2 = self.q(obs, act)
        q_loss = F.mse_loss(q1, rew) + F.mse_loss(q2, rew)
        self.opt_q.zero_grad()
        self.scaler.scale(q_loss).backward()
        self.scaler.unscale_(self.opt_q)
        nn.utils.clip_grad_norm_([*self.q1.parameters(), *self.q2.parameters()], 10.0)
        self.scaler.step(self.opt_q)

        a, logp = self.sample(obs, noise)
        pi_loss = (0.1 * self.log_alpha.exp().detach() * logp - torch.min(*self.q(obs, a))).mean()
        self.opt_pi.zero_grad()
        (pi_loss * self.scaler.get_scale()).backward()
        for p in self.pi.parameters():                 # by hand, this optimizer wants real gradients
            p.grad.mul_(1.0 / self.scaler.get_scale())
        if all(torch.isfinite(p.grad).all() for p in self.pi.parameters()):
            self.opt_pi.step()

        alpha_loss = -(self.log_alpha * (logp.detach() + self.target_entropy)).mean()
        self.opt_alpha.zero_grad()
        alpha_loss.backward()                           # fp32 scalar, no scaling needed
        self.opt_alpha.step()
        self.scaler.update()
        return q_loss.item(), pi_loss.item()


torch.manual_seed(10)
obs = torch.randn(2000, 8)
act = torch.rand(2000, 2) * 2 - 1
rew = 1 - ((act - torch.tanh(obs[:, :2])) ** 2).sum(1, keepdim=True)
agent = SAC()
for step in range(200):
    i = torch.randint(0, 2000, (128,))
    ql, pl = agent.update(obs[i].to(device), act[i].to(device), rew[i].to(device), torch.randn(128, 2).to(device))
    if step % 40 == 0 or step == 199:
        print(f"{step} q {ql:.4f} pi {pl:.4f} alpha {agent.log_alpha.exp().item():.4f}")
