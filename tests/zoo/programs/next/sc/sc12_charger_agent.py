"""Actor-critic that picks one of six charging rates for a car; the saving is booked in euros."""
import torch
from torch import nn

torch.manual_seed(47)
device = "cuda" if torch.cuda.is_available() else "cpu"
CONTEXT, RATES, BATCH, STEPS = 12, 6, 256, 200


class Garage:
    """Saving of each rate in a context, unknown to the agent."""

    def __init__(self):
        self.first = torch.randn(CONTEXT, 24, device=device) / CONTEXT**0.5
        self.second = torch.randn(24, RATES, device=device) / 24**0.5

    def contexts(self, count):
        return torch.randn(count, CONTEXT, device=device)

    def saving(self, context):
        return 0.4 + 0.3 * torch.tanh(2 * torch.tanh(context @ self.first) @ self.second)


def mlp(outputs):
    return nn.Sequential(nn.Linear(CONTEXT, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)).to(device)


garage = Garage()
actor, critic = mlp(RATES), mlp(1)
actor_opt = torch.optim.Adam(actor.parameters(), lr=4e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)

for step in range(STEPS):
    context = garage.contexts(BATCH)
    saving = garage.saving(context)

    with torch.autocast("cuda", dtype=torch.float16):
        policy = torch.distributions.Categorical(logits=actor(context).float())
        rate = policy.sample()
        saved = saving.gather(1, rate.unsqueeze(1)).squeeze(1) + 0.02 * torch.randn(BATCH, device=device)
        value = critic(context).squeeze(1)
        critic_loss = 0.5 * nn.functional.mse_loss(value, saved)

        advantage = saved - value.detach().float()
        advantage = (advantage - advantage.mean()) / advantage.std()
        actor_loss = -(policy.log_prob(rate) * advantage).mean() - 0.005 * policy.entropy().mean()

    critic_opt.zero_grad()
    scaler.scale(critic_loss).backward()
    scaler.step(critic_opt)

    actor_opt.zero_grad()
    scaler.scale(actor_loss).backward()
    scaler.step(actor_opt)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} saved {saved.mean().item():.3f} critic error {(value - saved).abs().mean().item():.3f}")

# regret of the greedy policy against the best rate of each context
context = garage.contexts(4000)
saving = garage.saving(context)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    choice = actor(context).argmax(1, keepdim=True)
regret = (saving.max(1).values - saving.gather(1, choice).squeeze(1)).mean()
print("metric", round(regret.item(), 5))
