"""REINFORCE with a rollout worker thread: trajectories are packed in half precision before they go through the queue."""
import queue
import threading
import torch
import torch.nn as nn

HORIZON, ENVS, UPDATES = 512, 16, 40


class Pack:
    def __init__(self, obs, act, ret):
        self.obs, self.act, self.ret = obs, act, ret


def reward_to_go(rew):
    out = torch.zeros_like(rew)
    run = torch.zeros_like(rew[0])
    for t in reversed(range(rew.shape[0])):
        run = rew[t] + run
        out[t] = run
    return out


class Rollouts(threading.Thread):
    """Survival bonus of 8 per step plus up to one point for the right action."""

    def __init__(self, policy, q, go):
        super().__init__(daemon=True)
        self.policy, self.q, self.go = policy, q, go
        self.gen = torch.Generator().manual_seed(4)
        self.w = torch.randn(6, 3, generator=self.gen)

    def run(self):
        for _ in range(UPDATES):
            self.go.acquire()
            obs = torch.randn(HORIZON, ENVS, 6, generator=self.gen)
            with torch.no_grad():
                p = self.policy(obs.to(device)).softmax(-1).cpu()
            act = torch.multinomial(p.reshape(-1, 3), 1, generator=self.gen).reshape(HORIZON, ENVS)
            rew = 8.0 + (act == (obs @ self.w).argmax(-1)).float()
            rew = rew.to(torch.float16)
            self.q.put(Pack(obs.to(torch.float16), act, reward_to_go(rew)))


device = "cuda" if torch.cuda.is_available() else "cpu"


def train():
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3)).to(device)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    q, go = queue.Queue(2), threading.Semaphore(0)
    Rollouts(policy, q, go).start()
    for it in range(UPDATES):
        go.release()
        b = q.get()
        obs, act, ret = b.obs.to(device).float(), b.act.to(device), b.ret.to(device).float()
        reward = ret - torch.cat([ret[1:], torch.zeros_like(ret[:1])])      # one-step difference of the returns
        adv = (reward - reward.mean()) / (reward.std() + 1e-6)
        with torch.autocast(device, dtype=torch.float16):
            logp = policy(obs).log_softmax(-1).gather(-1, act[..., None]).squeeze(-1)
            loss = -(logp * adv).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if it % 8 == 7:
            best = (act.cpu() == (b.obs.float() @ W).argmax(-1)).float().mean().item()
            print(f"update {it + 1} right action {best:.3f}")


W = torch.randn(6, 3, generator=torch.Generator().manual_seed(4))
if __name__ == "__main__":
    train()
