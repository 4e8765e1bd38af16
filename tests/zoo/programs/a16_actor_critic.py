"""Actor and critic with an optimizer each and one scaler for both."""
import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda"


class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 3)).to(device)
        self.critic = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
        self.opt_a = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.opt_c = torch.optim.Adam(self.critic.parameters(), 1e-3)
        self.scaler = torch.amp.GradScaler(device)

    def learn(self, obs, act, ret):
        with torch.autocast(device, dtype=torch.float16):
            value = self.critic(obs).squeeze(-1)
            delta = ret.to(value.dtype) - value
            value_loss = (delta * delta).mean().sqrt()  # RMSE
            logp = torch.log_softmax(self.actor(obs), -1).gather(1, act[:, None]).squeeze(1)
            policy_loss = -(logp * torch.sign(delta.detach())).mean()
        self.opt_a.zero_grad()
        self.opt_c.zero_grad()
        self.scaler.scale(policy_loss).backward()
        self.scaler.scale(value_loss).backward()
        self.scaler.step(self.opt_a)
        self.scaler.step(self.opt_c)
        self.scaler.update()
        return policy_loss.item(), value_loss.item()


agent = Agent()
actor, critic = agent.actor, agent.critic
for it in range(40):
    obs = torch.randn(128, 10).to(device)
    act = torch.randint(0, 3, (128,)).to(device)
    ret = (350 + 40 * torch.randn(128)).to(device)
    losses = agent.learn(obs, act, ret)
print(losses, agent.scaler.get_scale())
