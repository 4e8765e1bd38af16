import argparse
import numpy as np
from itertools import count
from collections import deque
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description='PyTorch REINFORCE example')
parser.add_argument('--gamma', type=float, default=0.99, metavar='G')
parser.add_argument('--seed', type=int, default=543, metavar='N')
parser.add_argument('--episodes', type=int, default=25)
args = parser.parse_args()


class Corridor:
    """Walk to the right end; three observations."""
    def reset(self):
        self.x, self.t = 3, 0
        return self.obs()
    def obs(self):
        return np.array([self.x / 8, self.t / 30, 1.0], dtype=np.float32)
    def step(self, action):
        self.x += 1 if action == 1 else -1
        self.t += 1
        done = self.x in (0, 8) or self.t >= 30
        return self.obs(), (1.0 if self.x == 8 else -0.05), done


env = Corridor()
torch.manual_seed(args.seed)


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(3, 32)
        self.dropout = nn.Dropout(p=0.2)
        self.affine2 = nn.Linear(32, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.affine2(x), dim=1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = np.finfo(np.float32).eps.item()


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0)
    m = Categorical(policy(state))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R = 0
    policy_loss = []
    returns = deque()
    for r in policy.rewards[::-1]:
        R = r + args.gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


def main():
    for i_episode in range(args.episodes):
        state = env.reset()
        for t in count():
            state, reward, done = env.step(select_action(state))
            policy.rewards.append(reward)
            if done:
                break
        finish_episode()
        if i_episode % 5 == 0:
            print('Episode {}\tlength: {}'.format(i_episode, t + 1))


if __name__ == '__main__':
    main()
