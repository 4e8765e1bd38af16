"""PPO on a swarm task: actor threads fill a shared rollout, the learner runs clipped epochs with a KL stop."""

import threading

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
OBS, ACT = 48, 96
ACTORS, ENVS, HORIZON = 3, 8, 12
ITERATIONS, EPOCHS, MINIBATCHES = 5, 4, 4
CLIP, TARGET_KL = 0.2, 0.02


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean = nn.Linear(64, ACT)
        self.value = nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.zeros(ACT))
        nn.init.orthogonal_(self.mean.weight, 0.01)

    def forward(self, obs):
        h = self.body(obs)
        return torch.distributions.Normal(self.mean(h).float(), self.log_std.exp()), self.value(h).squeeze(-1)


class Swarm:
    """Units that are paid for moving along a linear field of their observation."""

    def __init__(self, field, generator):
        self.field, self.generator = field, generator
        self.state = torch.randn(ENVS, OBS, generator=generator)

    def step(self, action):
        wanted = self.state @ self.field
        reward = -(action.cpu() - wanted).pow(2).mean(1)
        self.state = torch.randn(ENVS, OBS, generator=self.generator)
        return reward


class Rollout:
    def __init__(self):
        n = ACTORS * ENVS
        self.obs = torch.zeros(HORIZON, n, OBS, device=device)
        self.action = torch.zeros(HORIZON, n, ACT, device=device)
        self.logp = torch.zeros(HORIZON, n, device=device, dtype=torch.bfloat16)
        self.value = torch.zeros(HORIZON, n, device=device, dtype=torch.bfloat16)
        self.reward = torch.zeros(HORIZON, n, device=device)

    def flat(self):
        return (t.flatten(0, 1) for t in (self.obs, self.action, self.logp, self.value, self.reward))


class Actor(threading.Thread):
    def __init__(self, index, policy, rollout, field, start_line, end_line):
        super().__init__(daemon=True)
        self.columns = slice(index * ENVS, (index + 1) * ENVS)
        self.policy, self.rollout = policy, rollout
        self.generator = torch.Generator().manual_seed(100 + index)
        self.env = Swarm(field, self.generator)
        self.start_line, self.end_line = start_line, end_line

    @torch.no_grad()
    def collect(self):
        for t in range(HORIZON):
            obs = self.env.state.to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                dist, value = self.policy(obs)
            noise = torch.randn(ENVS, ACT, generator=self.generator).to(device)
            action = dist.mean + dist.stddev * noise
            self.rollout.obs[t, self.columns] = obs
            self.rollout.action[t, self.columns] = action
            self.rollout.logp[t, self.columns] = dist.log_prob(action).sum(-1).to(self.rollout.logp.dtype)
            self.rollout.value[t, self.columns] = value.to(self.rollout.value.dtype)
            self.rollout.reward[t, self.columns] = self.env.step(action).to(device)

    def run(self):
        for _ in range(ITERATIONS):
            self.start_line.wait()
            self.collect()
            self.end_line.wait()


def update(policy, optimizer, rollout, generator):
    obs, action, old_logp, old_value, reward = rollout.flat()
    advantage = reward - old_value.float()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    steps, clipped = 0, []
    for _ in range(EPOCHS):
        for index in torch.randperm(len(obs), generator=generator).chunk(MINIBATCHES):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                dist, value = policy(obs[index])
            log_ratio = dist.log_prob(action[index]).sum(-1) - old_logp[index]
            ratio = log_ratio.exp()
            approx_kl = ((ratio - 1) - log_ratio).mean().item()
            clipped.append(((ratio - 1).abs() > CLIP).float().mean().item())
            if approx_kl > TARGET_KL:
                return steps, sum(clipped) / len(clipped)
            adv = advantage[index]
            policy_loss = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
            loss = policy_loss + 0.5 * (value.float() - reward[index]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            steps += 1
    return steps, sum(clipped) / len(clipped)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    field = 0.3 * torch.randn(OBS, ACT, generator=generator)
    policy, rollout = Policy().to(device), Rollout()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    start_line, end_line = threading.Barrier(ACTORS + 1), threading.Barrier(ACTORS + 1)
    for index in range(ACTORS):
        Actor(index, policy, rollout, field, start_line, end_line).start()
    total = 0
    for iteration in range(ITERATIONS):
        start_line.wait()
        end_line.wait()
        steps, clipped = update(policy, optimizer, rollout, generator)
        total += steps
        print(f"iteration {iteration}: reward {rollout.reward.mean().item():.4f} steps {steps} clipped {clipped:.3f}")
    print(f"total steps {total} policy head norm {policy.mean.weight.norm().item():.4f}")


if __name__ == "__main__":
    main()
