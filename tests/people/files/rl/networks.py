"""Value networks; see train_dueling.py for the training."""
import torch
import torch.nn as nn


class NoisyLinear(nn.Module):
    def __init__(self, in_features, out_features, sigma=0.4):
        super().__init__()
        self.mu, self.scale = nn.Linear(in_features, out_features), nn.Parameter(torch.full((out_features,), sigma / in_features ** 0.5))

    def forward(self, x):
        return self.mu(x) + self.scale * torch.randn_like(self.scale) if self.training else self.mu(x)


class DuelingDQN(nn.Module):
    def __init__(self, obs_shape, n_actions):
        super().__init__()
        c, h, w = obs_shape
        self.conv = nn.Sequential(nn.Conv2d(c, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            n = self.conv(torch.zeros(1, c, h, w)).shape[1]
        self.value = nn.Sequential(nn.Linear(n, 64), nn.ReLU(), NoisyLinear(64, 1))
        self.advantage = nn.Sequential(nn.Linear(n, 64), nn.ReLU(), NoisyLinear(64, n_actions))

    def forward(self, obs):
        h = self.conv(obs / 255.0)
        v, a = self.value(h), self.advantage(h)
        return v + a - a.mean(dim=1, keepdim=True)
