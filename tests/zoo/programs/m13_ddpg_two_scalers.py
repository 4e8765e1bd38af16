"""Deterministic policy gradient for valve control; actor and critic each have their own scaler."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
device = "cuda" if torch.cuda.is_available() else "cpu"
OBS, ACT, TAU, GAMMA = 5, 2, 0.02, 0.9


class Net(nn.Module):
    def __init__(self, i, o, squash=False, h=48):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(i, h), nn.Linear(h, h), nn.Linear(h, o)
        self.squash = squash

    def forward(self, *xs):
        h = F.relu(self.l1(torch.cat(xs, -1)))
        y = self.l3(F.relu(self.l2(h)))
        return torch.tanh(y) if self.squash else y


class Replay:
    def __init__(self, n=2048, seed=0):
        g = torch.Generator().manual_seed(seed)
        s = torch.randn(n, OBS, generator=g)
        a = torch.rand(n, ACT, generator=g) * 2 - 1
        nxt = 0.8 * s + 0.2 * torch.randn(n, OBS, generator=g)
        nxt[:, :ACT] += 0.3 * a
        want = torch.tanh(torch.stack([s[:, 0] - s[:, 3], s[:, 1] + 0.5 * s[:, 4]], 1))
        r = 40.0 * (1 - (a - want).square().sum(1, keepdim=True))
        self.s, self.a, self.r, self.n = s.half(), a.half(), r.half(), nxt.half()
        self.want, self.g = want, g

    def sample(self, k=96):
        i = torch.randint(0, len(self.s), (k,), generator=self.g)
        return [t[i].float().to(device) for t in (self.s, self.a, self.r, self.n)]


def main(steps=250):
    actor, critic = Net(OBS, ACT, True).to(device), Net(OBS + ACT, 1).to(device)
    actor_t, critic_t = (copy.deepcopy(m).requires_grad_(False) for m in (actor, critic))
    opt_a = torch.optim.Adam(actor.parameters(), lr=1e-3)
    opt_c = torch.optim.Adam(critic.parameters(), lr=3e-3)
    scale_a = torch.amp.GradScaler(device, init_scale=2.0 ** 14)
    scale_c = torch.amp.GradScaler(device, init_scale=2.0 ** 16)
    data = Replay()
    for step in range(steps):
        s, a, r, n = data.sample()
        with torch.autocast(device, dtype=torch.float16):
            with torch.no_grad():
                target = r + GAMMA * critic_t(n, actor_t(n)).float()
            c_loss = F.smooth_l1_loss(critic(s, a), target)
        opt_c.zero_grad()
        scale_c.scale(c_loss).backward()
        scale_c.unscale_(opt_c)
        nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
        scale_c.step(opt_c)
        scale_c.update()

        with torch.autocast(device, dtype=torch.float16):
            a_loss = -critic(s, actor(s)).float().mean() / 40.0
        opt_a.zero_grad()
        scale_a.scale(a_loss).backward()
        scale_a.step(opt_a)
        scale_a.update()
        with torch.no_grad():
            for net, tgt in ((actor, actor_t), (critic, critic_t)):
                for p, q in zip(net.parameters(), tgt.parameters()):
                    q.lerp_(p, TAU)
        if step % 50 == 0 or step == steps - 1:
            with torch.no_grad():
                err = (actor(data.s.float().to(device)) - data.want.to(device)).square().mean()
            print(f"{step:4d} critic {c_loss.item():.3f} actor {a_loss.item():.3f} policy error {err.item():.4f} "
                  f"scales {scale_a.get_scale():g} {scale_c.get_scale():g}")


main()
