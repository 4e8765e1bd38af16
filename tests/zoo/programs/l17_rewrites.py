"""Query rewriting by reinforcement: a policy picks rewrites, a reward model learns from clicks next to it.

Advantages are taken relative to the group of samples that were drawn for the same query.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
FEATS, REWRITES, QUERIES, GROUP, STEPS = 10, 12, 48, 8, 300

truth = torch.randn(FEATS, REWRITES, device=device) * 1.2


def click_rate(q, a):
    return torch.sigmoid((q @ truth).gather(1, a))


def mlp(out):
    return nn.Sequential(nn.Linear(FEATS, 64), nn.ReLU(), nn.Linear(64, out)).to(device)


policy, rewarder = mlp(REWRITES), mlp(REWRITES)
policy_opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
reward_opt = torch.optim.Adam(rewarder.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)


def advantages(reward):
    """Rewards [queries, group] made relative to each query's group."""
    mean = reward.mean(dim=1, keepdim=True)
    std = reward.std(dim=1, keepdim=True)
    return (reward - mean) / (std + 1e-8)


for step in range(STEPS):
    q = torch.randn(QUERIES, FEATS, device=device)

    # 1. the reward model, on logged clicks of what the policy shows and of random rewrites
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        shown = torch.distributions.Categorical(logits=policy(q).float()).sample((GROUP,)).t()
    shown = torch.cat([shown, torch.randint(0, REWRITES, (QUERIES, GROUP), device=device)], dim=1)
    clicks = torch.bernoulli(click_rate(q, shown))
    with torch.autocast("cuda", dtype=torch.float16):
        reward_loss = F.binary_cross_entropy_with_logits(rewarder(q).gather(1, shown), clicks)
    reward_opt.zero_grad()
    scaler.scale(reward_loss).backward()
    scaler.step(reward_opt)

    # 2. the policy, on the reward model's opinion
    with torch.autocast("cuda", dtype=torch.float16):
        logits = policy(q)
        logp = F.log_softmax(logits, dim=1)
        picked = torch.distributions.Categorical(logits=logp.detach()).sample((GROUP,)).t()
        with torch.no_grad():
            adv = advantages(rewarder(q).gather(1, picked))
        entropy = -(logp.exp() * logp).sum(1).mean()
        policy_loss = -(adv * logp.gather(1, picked)).mean() - 0.003 * entropy
    policy_opt.zero_grad()
    scaler.scale(policy_loss).backward()
    scaler.step(policy_opt)
    scaler.update()

    if step % 60 == 0:
        print(f"step {step}: reward model loss {reward_loss.item():.3f}")

with torch.no_grad():
    q = torch.randn(4000, FEATS, device=device)
    best = policy(q).argmax(1, keepdim=True)
    print(f"RESULT {click_rate(q, best).mean().item():.4f}")
