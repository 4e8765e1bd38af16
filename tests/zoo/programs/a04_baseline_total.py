"""REINFORCE on a bandit, with the mean return so far as the baseline."""
import torch
import torch.nn as nn

torch.manual_seed(0)
dev = "cuda"
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4)).to(dev)
opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler(dev)
total = torch.zeros((), device=dev, dtype=torch.half)  # sum of all returns so far
count = 0
best = torch.randn(6, 4)

for episode in range(260):
    state = torch.randn(64, 6)
    with torch.autocast(dev, dtype=torch.float16):
        logits = policy(state.to(dev))
        dist = torch.distributions.Categorical(logits=logits.float())
        action = dist.sample()
        reward = 5.0 + ((state @ best).argmax(1).to(dev) == action).float()
        total = total + reward.sum().to(total.dtype)
        count += len(reward)
        advantage = reward - total / count
        loss = -(dist.log_prob(action) * advantage).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if episode % 50 == 0:
        print(episode, loss.item(), reward.mean().item())
print("last loss", loss.item())
