"""Identifies a gear motor from logged voltage and speed by gradient descent through the simulator.

Long roll-outs are cut into segments; a segment keeps only what it started from and runs again in the backward pass.
"""

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
DT, SEGMENT, SEGMENTS = 0.01, 10, 5
POLES = 5


class Rerun(torch.autograd.Function):
    """Checkpointing: forward without a graph, the segment runs again in backward."""

    @staticmethod
    def forward(ctx, function, n_inputs, keep, *args):
        ctx.function, ctx.keep = function, keep
        ctx.inputs = [x.detach().to(keep) for x in args[:n_inputs]]
        ctx.params = list(args[n_inputs:])
        with torch.no_grad():
            return function(*args[:n_inputs])

    @staticmethod
    def backward(ctx, *grads):
        inputs = [x.float().requires_grad_() for x in ctx.inputs]
        with torch.enable_grad():
            outputs = ctx.function(*inputs)
        found = torch.autograd.grad(outputs, inputs + ctx.params, grads, allow_unused=True)
        return (None, None, None) + found


class Motor(nn.Module):
    """Rotor with cogging, viscous friction and a learned friction curve; the rotor angle is not wrapped."""

    def __init__(self, gain=4.0, drag=0.5, cog=((0.0, 0.0), (0.0, 0.0))):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))
        self.drag = nn.Parameter(torch.tensor(drag))
        self.cog = nn.Parameter(torch.tensor(cog))
        self.friction = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        nn.init.zeros_(self.friction[-1].weight)
        nn.init.zeros_(self.friction[-1].bias)

    def torque(self, angle, speed, volts):
        turn = POLES * angle
        cogging = self.cog[0, 0] * turn.sin() + self.cog[0, 1] * turn.cos()
        cogging = cogging + self.cog[1, 0] * (2 * turn).sin() + self.cog[1, 1] * (2 * turn).cos()
        with torch.autocast("cuda", dtype=torch.float16):
            rub = self.friction(0.2 * speed.unsqueeze(-1)).squeeze(-1)
        return self.gain * volts - self.drag * speed + cogging + rub.float()

    def segment(self, angle, speed, volts):
        """Semi-implicit Euler over one segment; returns the speeds on the way as well."""
        speeds = []
        for t in range(volts.shape[0]):
            speed = speed + DT * self.torque(angle, speed, volts[t])
            angle = angle + DT * speed
            speeds.append(speed)
        return angle, speed, torch.stack(speeds)

    def forward(self, angle, speed, volts, keep=torch.float16):
        speeds = []
        for part in volts.split(SEGMENT):
            if torch.is_grad_enabled():
                params = list(self.parameters())
                angle, speed, some = Rerun.apply(self.segment, 3, keep, angle, speed, part, *params)
            else:
                angle, speed, some = self.segment(angle, speed, part)
            speeds.append(some)
        return torch.cat(speeds)


class Plant(Motor):
    """The motor on the bench."""

    def __init__(self):
        super().__init__(gain=6.0, drag=0.9, cog=((9.0, -6.0), (3.0, 4.0)))

    def torque(self, angle, speed, volts):
        return super().torque(angle, speed, volts) - 0.8 * torch.tanh(3 * speed)


@torch.no_grad()
def logs(plant, runs):
    """Voltage and speed of runs that start wherever the motor stood on the day."""
    angle = torch.rand(runs, device=device) * 3000 + 1200
    speed = torch.randn(runs, device=device) * 2
    length = SEGMENT * SEGMENTS
    time = torch.arange(length, device=device).unsqueeze(1) * DT
    rate = torch.rand(runs, device=device) * 6 + 2
    volts = 2.0 * torch.sin(rate * time + torch.rand(runs, device=device) * 6.28)
    volts = volts + torch.randn(runs, device=device)
    return angle, speed, volts, plant(angle, speed, volts)


def main(steps=70):
    torch.manual_seed(8)
    plant, motor = Plant().to(device), Motor().to(device)
    slow = [p for name, p in motor.named_parameters() if name.startswith("friction")]
    fast = [motor.gain, motor.drag, motor.cog]
    optimizer = torch.optim.Adam([{"params": fast, "lr": 0.25}, {"params": slow, "lr": 0.01}], betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for step in range(steps):
        angle, speed, volts, seen = logs(plant, 128)
        loss = (motor(angle, speed, volts) - seen).pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(motor.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step % 15 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}  gain {motor.gain.item():.2f}  drag {motor.drag.item():.2f}")
    print("cogging", [round(value, 2) for value in motor.cog.flatten().tolist()])
    angle, speed, volts, seen = logs(plant, 1000)
    with torch.no_grad():
        error = (motor(angle, speed, volts) - seen).pow(2).mean().sqrt()
    print(f"final metric: {error.item():.5f}")


if __name__ == "__main__":
    main()
