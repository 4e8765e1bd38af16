"""Wasserstein generator of plasma profiles with a gradient penalty; critic and generator each have a scaler."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Profiles:
    """Radial profiles with eight sample points: a pedestal of random height, width and tilt."""

    def __init__(self, seed=29, points=8):
        self.gen = torch.Generator().manual_seed(seed)
        self.r = torch.linspace(0, 1, points)[None]

    def draw(self, n):
        u = torch.rand(n, 3, generator=self.gen)
        height, edge, tilt = 1.0 + 1.5 * u[:, :1], 0.4 + 0.4 * u[:, 1:2], 0.8 * u[:, 2:]
        y = height * torch.sigmoid((edge - self.r) * 9) + tilt * (1 - self.r)
        return (y - 1.0 + 0.03 * torch.randn(y.shape, generator=self.gen)).to(device)


class Net(nn.Module):
    def __init__(self, inp, out, width=128):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(inp, width), nn.Linear(width, width), nn.Linear(width, out)

    def forward(self, x):
        return self.c(F.silu(self.b(F.silu(self.a(x)))))


class Side:
    """A network with its optimizer and scaler."""

    def __init__(self, net, lr):
        self.net = net.to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr, betas=(0.5, 0.95))
        self.scaler = torch.amp.GradScaler(device, init_scale=4096.0)
        self.tried = 0

    def step(self, loss):
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.tried += 1

    def kept(self):
        return int(self.opt.state[self.net.a.weight]["step"])


def penalty(critic, real, fake, dtype):
    mix = torch.rand(len(real), 1, device=real.device)
    x = (mix * real + (1 - mix) * fake).detach().requires_grad_()
    with torch.autocast(device, dtype=dtype):
        out = critic.net(x)
        scaled = critic.scaler.scale(out.float().sum())
    grad, = torch.autograd.grad(scaled, x, create_graph=True)
    grad = grad / critic.scaler.get_scale()
    with torch.autocast(device, dtype=dtype):
        return ((grad.norm(dim=1) - 1) ** 2).mean()


def sliced_distance(a, b, directions=128):
    g = torch.Generator().manual_seed(0)
    w = F.normalize(torch.randn(a.shape[1], directions, generator=g), dim=0).to(a.device)
    return ((a @ w).sort(0).values - (b @ w).sort(0).values).abs().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--critic-steps", type=int, default=3)
    parser.add_argument("--weight", type=float, default=5.0)
    args = parser.parse_args()
    dtype = torch.float16
    torch.manual_seed(args.seed)
    profiles = Profiles()
    held = profiles.draw(4000)
    latent = 8
    critic, generator = Side(Net(8, 1), 1e-3), Side(Net(latent, 8), 1e-3)
    for step in range(args.steps):
        for _ in range(args.critic_steps):
            real = profiles.draw(args.batch)
            with torch.autocast(device, dtype=dtype):
                with torch.no_grad():
                    fake = generator.net(torch.randn(args.batch, latent, device=device))
                gap = critic.net(fake).float().mean() - critic.net(real).float().mean()
            critic.step(gap + args.weight * penalty(critic, real, fake.float(), dtype))
        with torch.autocast(device, dtype=dtype):
            loss = -critic.net(generator.net(torch.randn(args.batch, latent, device=device))).float().mean()
        generator.step(loss)
        if step % 50 == 0:
            print(f"step {step:3d} gap {-gap.item():.4f} generator {loss.item():.4f}")

    with torch.no_grad(), torch.autocast(device, dtype=dtype):
        sample = generator.net(torch.randn(4000, latent, device=device)).float()
    distance = sliced_distance(sample, held)
    print(f"sliced distance {distance:.4f}")
    return {"distance": distance, "lost_c": critic.tried - critic.kept(), "lost_g": generator.tried - generator.kept(),
            "scale_c": critic.scaler.get_scale(), "scale_g": generator.scaler.get_scale()}


if __name__ == "__main__":
    main()
