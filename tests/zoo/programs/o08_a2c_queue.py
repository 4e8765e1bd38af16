"""Advantage actor-critic for admission control at a queue, trained in fp16 with our own static loss scaler."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"

N_ENVS, HORIZON, UPDATES, GAMMA, V_SCALE = 64, 16, 110, 0.9, 100.0


class Queue:
    """n parallel queues; serve slow (cheap), normal or fast (expensive). Holding cost grows with the queue."""

    def __init__(self, n):
        self.len = torch.randint(0, 20, (n,), device=device).float()
        self.rate = torch.rand(n, device=device) * 4

    def obs(self):
        return torch.stack([self.len / 20, self.rate / 4, (self.len / 20) ** 2], 1)

    def step(self, a):
        serve = torch.tensor([1.0, 2.5, 5.0], device=device)[a]
        price = torch.tensor([0.0, 6.0, 20.0], device=device)[a]
        self.len = (self.len + torch.poisson(self.rate) - torch.poisson(serve)).clamp(0, 40)
        self.rate = (self.rate + 0.4 * torch.randn_like(self.rate)).clamp(0, 4)
        return self.obs(), 30.0 - 2.5 * self.len - price


class StaticLossScaler:
    """Fixed scale; broken entries are dropped from the gradient instead of the whole step."""

    def __init__(self, scale):
        self.scale = scale

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(1.0 / self.scale)
                    torch.nan_to_num(p.grad, nan=0.0, posinf=0.0, neginf=0.0, out=p.grad)
        optimizer.step()


class Net(nn.Module):
    def __init__(self, out, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.out = nn.Linear(hidden, out)

    def forward(self, o):
        return self.out(self.body(o))


actor, critic = Net(3).to(device), Net(1).to(device)
opt = torch.optim.RMSprop([{"params": actor.parameters(), "lr": 1e-3}, {"params": critic.parameters(), "lr": 2e-3}], alpha=0.95)
loss_scaler = StaticLossScaler(2.0 ** 15)
env = Queue(N_ENVS)
obs = env.obs()
rewards = []

for update in range(UPDATES):
    O, A, R = [], [], []
    for t in range(HORIZON):
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
            probs = F.softmax(actor(obs), 1)
        a = torch.multinomial(probs, 1).squeeze(1)
        nxt, r = env.step(a)
        O.append(obs), A.append(a), R.append(r)
        obs = nxt
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        ret = V_SCALE * critic(obs).float().squeeze(1)
    returns = []
    for r in reversed(R):
        ret = r + GAMMA * ret
        returns.insert(0, ret)
    O, A, returns = torch.cat(O), torch.cat(A), torch.cat(returns)

    with torch.autocast(device, dtype=torch.float16):
        logits = actor(O)
        value = V_SCALE * critic(O).squeeze(1)
    logp = F.log_softmax(logits.float(), 1)
    adv = (returns - value.float()).detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    pg_loss = -(logp.gather(1, A[:, None]).squeeze(1) * adv).mean()
    entropy = -(logp.exp() * logp).sum(1).mean()
    v_loss = F.mse_loss(value.float(), returns)
    opt.zero_grad()
    loss_scaler.backward(pg_loss - 0.01 * entropy + 0.5 * v_loss)
    loss_scaler.step(opt)
    rewards.append(torch.stack(R).mean().item())
    if (update + 1) % 22 == 0:
        ev = 1 - (returns - value.float()).var() / returns.var()
        print(f"update {update + 1:4d}  reward {sum(rewards[-22:]) / 22:8.3f}  value loss {v_loss.item():10.2f}  explained variance {ev.item():.3f}")

rmse = (returns - value.float()).pow(2).mean().sqrt().item()
print(f"final reward {sum(rewards[-20:]) / 20:.3f}  critic rmse {rmse:.2f}")
