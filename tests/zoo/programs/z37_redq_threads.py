"""Offline RL with a REDQ style ensemble of critics. The critics are independent, so they run in a thread pool."""
import logging
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("redq")
device = "cuda" if torch.cuda.is_available() else "cpu"


class Config:
    obs, act, hidden, n_critics, batch, steps = 10, 3, 48, 4, 128, 150
    gamma, tau, bc_weight = 0.9, 0.05, 1.0


class Critic(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.l1 = nn.Linear(c.hidden + c.act, c.hidden)
        self.l2 = nn.Linear(c.hidden, 1)

    def forward(self, h, a):
        return self.l2(F.relu(self.l1(torch.cat([h, a.to(h.dtype)], -1)))).squeeze(-1)


class REDQ:
    def __init__(self, cfg):
        self.c = cfg
        self.enc = nn.Sequential(nn.Linear(cfg.obs, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.hidden)).to(device)
        self.actor = nn.Linear(cfg.hidden, cfg.act).to(device)
        self.critics = nn.ModuleList(Critic(cfg) for _ in range(cfg.n_critics)).to(device)
        self.pool = ThreadPoolExecutor(max_workers=2)
        self.opt = torch.optim.Adam(list(self.enc.parameters()) + list(self.actor.parameters()), lr=1e-3)
        self.opt_q = torch.optim.Adam(self.critics.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device)

    def critic_loss(self, i, h, a, r):
        q = self.critics[i](h, a)
        return i, F.mse_loss(q, r), q.detach()

    def update(self, obs, act, rew):
        with torch.autocast(device_type=device, dtype=torch.float16):
            h = self.enc(obs)
            loss = self.c.bc_weight * F.mse_loss(torch.tanh(self.actor(h)), act)
            jobs = [self.pool.submit(self.critic_loss, i, h, act, rew) for i in range(self.c.n_critics)]
            qs = []
            for job in as_completed(jobs):
                if job.exception() is not None:      # a critic may blow up early on, the ensemble goes on without it
                    log.debug("critic dropped: %s", job.exception())
                    continue
                i, li, q = job.result()
                loss = loss + li / self.c.n_critics
                qs.append(q)
        self.opt.zero_grad()
        self.opt_q.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        if qs:
            self.scaler.step(self.opt_q)
        self.scaler.update()
        return loss.item()


def dataset(cfg, n=2048):
    obs = torch.randn(n, cfg.obs)
    act = torch.tanh(obs[:, :3] - obs[:, 3:6] * 0.5)
    rew = obs[:, 0] * act[:, 0] + obs[:, 1].abs() - act[:, 2] ** 2
    return obs.to(device), act.to(device), rew.to(device)


def main():
    torch.manual_seed(3)
    cfg = Config()
    agent, (obs, act, rew) = REDQ(cfg), dataset(cfg)
    for step in range(cfg.steps):
        i = torch.randint(0, len(obs), (cfg.batch,), device=device)
        loss = agent.update(obs[i], act[i], rew[i])
        if step % 30 == 0 or step == cfg.steps - 1:
            with torch.no_grad():
                q = torch.stack([c(agent.enc(obs), act) for c in agent.critics]).mean(0)
            print(f"{step} loss {loss:.4f} q error on the data {F.mse_loss(q, rew).item():.4f}")
    agent.pool.shutdown()


if __name__ == "__main__":
    main()
