import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
OBS, ACTIONS, ENVS, UPDATES = 12, 5, 256, 200

rule = torch.randn(OBS, ACTIONS)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.pi = nn.Linear(64, ACTIONS)

    def forward(self, x):
        return self.pi(self.net(x))


class RolloutWorker(threading.Thread):
    """Acts with the learner's policy (same module, shared memory) and ships batches of experience."""

    def __init__(self, policy):
        super().__init__(daemon=True)
        self.policy = policy
        self.requests, self.batches = queue.Queue(), queue.Queue()

    def run(self):
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            while True:
                seed = self.requests.get()
                if seed is None:
                    return
                gen = torch.Generator().manual_seed(seed)
                obs = torch.randn(ENVS, OBS, generator=gen)
                logits = self.policy(obs.to(device)).float()
                probs = torch.softmax(logits, dim=1)
                action = torch.multinomial(probs.cpu(), 1, generator=gen).squeeze(1)
                score = (obs.double() @ rule.double()).float()
                reward = (score.argmax(1) == action).float()
                self.batches.put((obs.to(device), action.to(device), reward.to(device)))


policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
worker = RolloutWorker(policy)
worker.start()
baseline = 0.0

for update in range(UPDATES):
    worker.requests.put(1000 + update)
    obs, action, reward = worker.batches.get()
    baseline = 0.9 * baseline + 0.1 * reward.mean().item()
    logp = F.log_softmax(policy(obs), dim=1)
    chosen = logp.gather(1, action[:, None]).squeeze(1)
    entropy = -(logp.exp() * logp).sum(1).mean()
    loss = -(chosen * (reward - baseline)).mean() - 0.01 * entropy
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if update % 25 == 0:
        print(f"update {update:3d}  loss {loss.item():.4f}  reward {reward.mean().item():.3f}  entropy {entropy.item():.3f}")

worker.requests.put(None)
worker.join()
with torch.no_grad():
    obs = torch.randn(4000, OBS)
    greedy = policy(obs.to(device)).argmax(1).cpu()
    acc = (greedy == (obs @ rule).argmax(1)).float().mean().item()
print(f"mean reward at the end {reward.mean().item():.3f}  greedy accuracy {acc:.3f}")
