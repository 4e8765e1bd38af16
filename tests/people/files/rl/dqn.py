"""DQN on a small cart-pole written here, replay memory, target network, AMP."""
import math
import random
from collections import deque, namedtuple
from itertools import count

import torch
import torch.nn as nn
import torch.optim as optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward", "done"))


class CartPole:
    def reset(self):
        self.s, self.t = [random.uniform(-0.05, 0.05) for _ in range(4)], 0
        return list(self.s)

    def step(self, a):
        x, v, th, w = self.s
        f = 10.0 if a else -10.0
        tmp = (f + 0.05 * w * w * math.sin(th)) / 1.1
        acc_th = (9.8 * math.sin(th) - math.cos(th) * tmp) / (0.5 * (4 / 3 - 0.1 * math.cos(th) ** 2 / 1.1))
        acc = tmp - 0.05 * acc_th * math.cos(th) / 1.1
        self.s = [x + 0.02 * v, v + 0.02 * acc, th + 0.02 * w, w + 0.02 * acc_th]
        self.t += 1
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21 or self.t >= 100
        return list(self.s), 1.0, done


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super(DQN, self).__init__()
        self.layer1 = nn.Linear(n_observations, 64)
        self.layer2 = nn.Linear(64, 64)
        self.layer3 = nn.Linear(64, n_actions)

    def forward(self, x):
        x = torch.relu(self.layer1(x))
        return self.layer3(torch.relu(self.layer2(x)))


BATCH_SIZE, GAMMA, TAU, LR = 32, 0.99, 0.005, 1e-3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
use_amp = device.type == "cuda"
policy_net, target_net = DQN(4, 2).to(device), DQN(4, 2).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
scaler = torch.amp.GradScaler(device.type, enabled=use_amp)
memory = ReplayMemory(2000)
env = CartPole()


def select_action(state, eps=0.3):
    if random.random() < eps:
        return random.randrange(2)
    with torch.no_grad():
        return int(policy_net(torch.tensor([state], device=device)).argmax(1))


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    s, ns = torch.tensor(batch.state, device=device), torch.tensor(batch.next_state, device=device)
    a = torch.tensor(batch.action, device=device).unsqueeze(1)
    r, d = torch.tensor(batch.reward, device=device), torch.tensor(batch.done, device=device).float()
    with torch.autocast(device.type, enabled=use_amp):
        q = policy_net(s).gather(1, a).squeeze(1)
        with torch.no_grad():
            target = r + GAMMA * target_net(ns).max(1).values * (1 - d)
        loss = nn.functional.smooth_l1_loss(q, target.float())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    scaler.step(optimizer)
    scaler.update()


def main(num_episodes=12):
    for ep in range(num_episodes):
        state = env.reset()
        for t in count():
            action = select_action(state)
            nxt, reward, done = env.step(action)
            memory.push(state, action, nxt, reward, done)
            state = nxt
            optimize_model()
            with torch.no_grad():
                for p, q in zip(target_net.parameters(), policy_net.parameters()):
                    p.lerp_(q, TAU)
            if done:
                print("episode", ep, "lasted", t + 1)
                break


if __name__ == "__main__":
    main()
