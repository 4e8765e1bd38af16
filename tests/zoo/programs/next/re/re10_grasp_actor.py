"""Grasp angle of a gripper by an actor and a critic that share one gradient scaler (one-step deterministic policy)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(71)
SENSORS, STEPS, BATCH = 12, 200, 128


class Bench:
    """Objects seen by a few sensors; the reward falls off with the distance from the best angle and force."""

    def __init__(self):
        self.map = torch.randn(SENSORS, 2) / SENSORS**0.5

    def sample(self, count):
        return torch.randn(count, SENSORS).to(device)

    def reward(self, seen, action):
        best = torch.tanh(seen @ self.map.to(device))
        return 1.0 - (action.float() - best).square().sum(1)


def mlp(inputs, outputs, width=64):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
    ).to(device)


def main():
    bench = Bench()
    actor, critic = mlp(SENSORS, 2), mlp(SENSORS + 2, 1)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=2e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

    for step in range(STEPS):
        seen = bench.sample(BATCH)
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            tried = torch.tanh(actor(seen)).float()
        tried = (tried + 0.4 * torch.randn_like(tried)).clamp(-1.2, 1.2)
        reward = bench.reward(seen, tried)

        with torch.autocast("cuda", dtype=torch.float16):
            value = critic(torch.cat([seen, tried], 1)).squeeze(1)
            critic_loss = F.mse_loss(value, reward)
        critic_opt.zero_grad(set_to_none=True)
        scaler.scale(critic_loss).backward()
        scaler.unscale_(critic_opt)
        nn.utils.clip_grad_norm_(critic.parameters(), 5.0)
        scaler.step(critic_opt)

        with torch.autocast("cuda", dtype=torch.float16):
            action = torch.tanh(actor(seen))
            actor_loss = -critic(torch.cat([seen, action], 1)).float().mean()
        actor_opt.zero_grad(set_to_none=True)
        scaler.scale(actor_loss).backward()  # also leaves gradients at the critic, cleared above in the next step
        scaler.step(actor_opt)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} critic {critic_loss.item():.3f} actor {actor_loss.item():.3f} scale {scaler.get_scale():g}")
    print(f"scale {scaler.get_scale():g}")

    seen = bench.sample(4000)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        action = torch.tanh(actor(seen))
    print(f"metric {bench.reward(seen, action).mean().item():.4f}")


main()
