import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(17)

OBS, ACTIONS, ENVS, STEPS = 6, 4, 128, 200
DTYPE = torch.float16


class ReturnNormalizer(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return."""

    def __init__(self, envs, gamma=0.9, clip=10.0):
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.register_buffer("running", torch.zeros(envs, dtype=DTYPE))
        self.register_buffer("mean", torch.zeros((), dtype=DTYPE))
        self.register_buffer("m2", torch.ones((), dtype=DTYPE))
        self.count = 0

    @torch.no_grad()
    def forward(self, reward):
        self.running.mul_(self.gamma).add_(reward.to(DTYPE))
        batch = self.running.float()
        n = batch.numel()
        total = self.count + n
        delta = batch.mean() - self.mean
        m2 = self.m2 + batch.var(unbiased=False) * n + delta.square() * self.count * n / total
        self.m2.copy_(m2)
        self.mean.add_((delta * n / total).to(DTYPE))
        self.count = total
        std = (self.m2.float() / self.count).sqrt() + 1e-6
        return (reward / std).clamp(-self.clip, self.clip)


class Shooter:
    """Hit the target that the observation points at."""

    def __init__(self):
        self.table = torch.randn(OBS, ACTIONS, device=device)

    def reset(self):
        return torch.randn(ENVS, OBS, device=device)

    def score(self, obs, action):
        quality = torch.tanh(obs @ self.table).gather(1, action[:, None]).squeeze(1)
        return 12.0 * quality + 2.0 * torch.randn_like(quality)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.logits, self.value = nn.Linear(48, ACTIONS), nn.Linear(48, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.logits(h), self.value(h).squeeze(-1)


game, policy = Shooter(), Policy().to(device)
normalize = ReturnNormalizer(ENVS).to(device)
opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    obs = game.reset()
    with torch.autocast("cuda", dtype=DTYPE):
        logits, value = policy(obs)
        logp = F.log_softmax(logits, dim=1)
        action = torch.distributions.Categorical(logits=logp.detach()).sample()
        score = game.score(obs, action)
        reward = normalize(score)
        advantage = reward - value.detach().float()
        pick = logp.gather(1, action[:, None]).squeeze(1)
        entropy = -(logp.exp() * logp).sum(1).mean()
        loss = -(pick * advantage).mean() + 0.5 * F.mse_loss(value, reward) - 0.02 * entropy
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} score {score.mean().item():.2f} reward {reward.mean().item():.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=DTYPE):
    obs = torch.randn(4000, OBS, device=device)
    probs = torch.softmax(policy(obs)[0], dim=1)
    quality = (probs * torch.tanh(obs @ game.table).float()).sum(1).mean()
print(f"metric {quality.item():.4f}")
