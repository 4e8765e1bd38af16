"""A2C with two environment threads; returns are in the thousands, the value loss is taken in FP32."""
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
actor = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)).to(device)
critic = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
opt_a = torch.optim.Adam(actor.parameters(), 1e-3)
opt_c = torch.optim.Adam(critic.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)


def rollout(seed):
    g = torch.Generator().manual_seed(seed)
    s = torch.randn(32, 6, generator=g)
    a = torch.randint(0, 3, (32,), generator=g)
    return s, a, 20 + 10 * s[:, 0] + 5 * (a == 1)


with ThreadPoolExecutor(2) as pool:
    for it in range(60):
        s, a, ret = (torch.cat(v).to(device) for v in zip(*pool.map(rollout, (2 * it, 2 * it + 1))))
        with torch.autocast("cuda", dtype=torch.float16):
            value = critic(s).squeeze(1).float()
            logp = actor(s).log_softmax(-1).gather(1, a[:, None]).squeeze(1)
            adv = ret - value
            loss_c = adv.pow(2).mean()
            loss_a = -(logp * (adv.detach() / 20)).mean()
        opt_a.zero_grad()
        opt_c.zero_grad()
        scaler.scale(loss_a + loss_c).backward()
        scaler.unscale_(opt_a)
        scaler.unscale_(opt_c)
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        scaler.step(opt_a)
        scaler.step(opt_c)
        scaler.update()
print(loss_a.item(), loss_c.item(), scaler.get_scale())
