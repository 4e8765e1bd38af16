import copy
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(83)

SIZE, GAMMA, ROUNDS, ENVS, UNROLL = 5, 0.9, 60, 32, 8
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Maze:
    """A walker and a goal on a small board; a round ends at the goal."""

    def __init__(self, envs, generator):
        self.envs, self.generator = envs, generator
        self.pos, self.goal = self.fresh(), self.fresh()

    def fresh(self):
        return torch.randint(0, SIZE, (self.envs, 2), generator=self.generator)

    def observe(self):
        both = torch.cat([self.pos, self.goal], dim=1)
        return F.one_hot(both, SIZE).flatten(1).to(device, torch.float16)

    def step(self, action):
        self.pos = (self.pos + MOVES[action]).clamp(0, SIZE - 1)
        done = (self.pos == self.goal).all(1)
        self.pos = torch.where(done[:, None], self.fresh(), self.pos)
        self.goal = torch.where(done[:, None], self.fresh(), self.goal)
        return torch.where(done, 1.0, -0.02).to(torch.float16), done


def build():
    return nn.Sequential(nn.Linear(4 * SIZE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)


def actor(weights, rollouts, generator):
    """Plays with a half copy of the newest network; needs no gradients and no autocast."""
    net, maze = build().half().eval(), Maze(ENVS, generator)
    while True:
        state = weights.get()
        if state is None:
            return
        net.load_state_dict(state)
        batch = []
        for _ in range(UNROLL):
            obs = maze.observe()
            with torch.no_grad():
                action = net(obs).argmax(1).cpu()
            lucky = torch.rand(ENVS, generator=generator) < 0.3
            action = torch.where(lucky, torch.randint(0, 4, (ENVS,), generator=generator), action)
            pos, goal = maze.pos, maze.goal
            reward, done = maze.step(action)
            after = torch.where(done[:, None], pos, maze.pos)
            both = torch.cat([after, torch.where(done[:, None], goal, maze.goal)], dim=1)
            batch.append((obs, action, reward, F.one_hot(both, SIZE).flatten(1).to(torch.float16), done.half()))
        rollouts.put([torch.cat(part) for part in zip(*batch)])


def main():
    net = build()
    target = copy.deepcopy(net)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda")
    weights, rollouts = queue.Queue(), queue.Queue()
    generator = torch.Generator()
    generator.manual_seed(84)
    player = threading.Thread(target=actor, args=(weights, rollouts, generator))
    player.start()
    memory = []
    for r in range(ROUNDS):
        weights.put({k: v.detach().half() for k, v in net.state_dict().items()})
        memory = (memory + [rollouts.get()])[-20:]
        obs, action, reward, after, done = (torch.cat(part).to(device) for part in zip(*memory))
        for _ in range(5):
            i = torch.randint(0, len(obs), (256,), device=device)
            with torch.autocast("cuda", dtype=torch.float16):
                with torch.no_grad():
                    best = target(after[i]).gather(1, net(after[i]).argmax(1, keepdim=True)).squeeze(1)
                    goal = reward[i] + GAMMA * (1 - done[i]) * best
                q = net(obs[i]).gather(1, action[i][:, None]).squeeze(1)
                loss = F.smooth_l1_loss(q, goal)
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        if r % 3 == 0:
            target.load_state_dict(net.state_dict())
    weights.put(None)
    player.join()

    generator.manual_seed(85)
    maze, found = Maze(500, generator), 0
    for _ in range(16):
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            action = net(maze.observe()).argmax(1).cpu()
        found += maze.step(action)[1].sum().item()
    print(f"metric {found / 500:.4f}")


if __name__ == "__main__":
    main()
