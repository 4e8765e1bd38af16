"""DAgger for a two-joint arm: the student drives, the slow expert labels what the student saw."""

import collections

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ROLLOUT_DTYPE = torch.bfloat16


class Arm:
    """Batched planar arm with velocity control in joint space."""

    lengths = (0.6, 0.5)

    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.q = torch.rand(self.n, 2, device=device) * 2 - 1
        self.q[:, 1] += 1.3
        goal = torch.rand(self.n, 2, device=device) * 2 - 1
        goal[:, 1] += 1.3
        self.goal = self.tip(goal)

    def tip(self, q):
        a, b = q[:, 0], q[:, 0] + q[:, 1]
        x = self.lengths[0] * a.cos() + self.lengths[1] * b.cos()
        y = self.lengths[0] * a.sin() + self.lengths[1] * b.sin()
        return torch.stack([x, y], dim=1)

    def observe(self):
        tip = self.tip(self.q)
        return torch.cat([self.q.sin(), self.q.cos(), tip, self.goal, 3 * (self.goal - tip)], dim=1)

    def expert(self, damping=0.05):
        """Damped least squares on the Jacobian."""
        a, b = self.q[:, 0], self.q[:, 0] + self.q[:, 1]
        l1, l2 = self.lengths
        row_x = torch.stack([-l1 * a.sin() - l2 * b.sin(), -l2 * b.sin()], dim=1)
        row_y = torch.stack([l1 * a.cos() + l2 * b.cos(), l2 * b.cos()], dim=1)
        jac = torch.stack([row_x, row_y], dim=1)
        eye = torch.eye(2, device=device)
        err = (self.goal - self.tip(self.q)).unsqueeze(2)
        step = jac.transpose(1, 2) @ torch.linalg.solve(jac @ jac.transpose(1, 2) + damping * eye, err)
        return (2.0 * step.squeeze(2)).clamp(-1, 1)

    def move(self, action):
        self.q = self.q + 0.2 * action.clamp(-1, 1)


class Student(nn.Module):
    def __init__(self, n_obs=10, width=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        )

    def forward(self, obs):
        return self.layers(obs)

    @torch.no_grad()
    def act(self, obs):
        return self(obs.to(self.layers[0].weight.dtype)).float()


def drive(student, arm, length=6):
    """Let the student drive for a while; return what it saw and what the expert would have done."""
    student.to(ROLLOUT_DTYPE).eval()
    seen, labels = [], []
    for _ in range(length):
        obs = arm.observe()
        seen.append(obs)
        labels.append(arm.expert())
        arm.move(student.act(obs))
    student.float().train()
    return torch.cat(seen), torch.cat(labels)


@torch.no_grad()
def final_distance(student, n=2000, length=25):
    student.eval()
    arm = Arm(n)
    for _ in range(length):
        arm.move(student.act(arm.observe()))
    return (arm.tip(arm.q) - arm.goal).norm(dim=1).mean().item()


def main(rounds=270, batch=384):
    torch.manual_seed(13)
    student, arm = Student().to(device), Arm(64)
    optimizer = torch.optim.Adam(student.parameters(), lr=6e-5)
    memory = collections.deque(maxlen=80)
    for it in range(rounds):
        if it % 10 == 0:
            arm.reset()
        memory.append(drive(student, arm))
        obs = torch.cat([part[0] for part in memory])
        label = torch.cat([part[1] for part in memory])
        pick = torch.randint(0, len(obs), (batch,), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(student(obs[pick]).float(), label[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if it % 40 == 0:
            print(f"round {it:3d}  memory {len(obs):6d}  loss {loss.item():.4f}")
    print(f"final metric: {final_distance(student):.5f}")


if __name__ == "__main__":
    main()
