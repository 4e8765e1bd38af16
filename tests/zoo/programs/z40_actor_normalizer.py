import queue
import threading

import torch
import torch.nn as nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
OBS, ACT = 8, 2


class RunningNorm:
    def __init__(self, dim, dtype=torch.float16):
        self.count = torch.zeros((), dtype=dtype, device=device)
        self.mean = torch.zeros(dim, dtype=dtype, device=device)
        self.m2 = torch.zeros(dim, dtype=dtype, device=device)

    def update(self, x):
        for row in x.to(self.mean.dtype):
            self.count += 1
            d = row - self.mean
            self.mean += d / self.count
            self.m2 += d * (row - self.mean)

    def __call__(self, x):
        std = (self.m2.float() / self.count.clamp(min=1).float()).sqrt() + 1e-6
        return ((x - self.mean.float()) / std).clamp(-10, 10)


def simulate(n, gen):
    """joint angles in degrees and motor currents; target torque of an expert controller as supervision for the actor"""
    ang = torch.randn(n, 4, generator=gen) * 45 + 10
    cur = torch.randn(n, 4, generator=gen) * 8
    obs = torch.cat([ang, cur], 1)
    tau = torch.stack([torch.tanh(ang[:, 0] / 45 - cur[:, 1] / 8), torch.tanh(cur[:, 0] / 8 + ang[:, 2] / 45)], 1)
    ret = tau.sum(1) + ang[:, 1] / 45
    return obs.to(device), tau.to(device), ret.to(device)


def actor_loop(norm, out, n_iters):
    gen = torch.Generator().manual_seed(4)
    for _ in range(n_iters):
        obs, tau, ret = simulate(64, gen)
        norm.update(obs[:16])
        out.put((norm(obs), tau, ret))
    out.put(None)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mu = nn.Linear(64, ACT)
        self.value = nn.Linear(64, 1)

    def forward(self, o):
        h = self.body(o)
        return self.mu(h), self.value(h).squeeze(1)


def learn(n_iters=150):
    net, norm, q = Policy().to(device), RunningNorm(OBS), queue.Queue(maxsize=4)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device)
    th = threading.Thread(target=actor_loop, args=(norm, q, n_iters), daemon=True)
    th.start()
    it = 0
    while (item := q.get()) is not None:
        obs, tau, ret = item
        with torch.autocast(device_type=device, dtype=torch.float16):
            mu, v = net(obs)
            a_loss = nn.functional.mse_loss(mu, tau)
            v_loss = nn.functional.smooth_l1_loss(v, ret)
        opt.zero_grad()
        scaler.scale(a_loss + 0.5 * v_loss).backward()
        scaler.step(opt)
        scaler.update()
        if it % 30 == 0 or it == n_iters - 1:
            print(f"it {it:3d} actor {a_loss.item():.4f} value {v_loss.item():.4f}")
        it += 1
    th.join()


learn()
