"""DDPM on 2-D shapes. The schedule is stored in the compute dtype so that q_sample never promotes."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Schedule(nn.Module):
    def __init__(self, T=1000, dtype=torch.bfloat16):
        super().__init__()
        beta = torch.linspace(1e-4, 0.02, T).to(dtype)
        keep = (1 - beta)
        bar = [keep[0]]
        for k in keep[1:]:
            bar.append(bar[-1] * k)
        bar = torch.stack(bar)
        self.register_buffer("a", bar.sqrt())
        self.register_buffer("s", (1 - bar).sqrt())

    def q_sample(self, x, t, eps):
        return self.a[t, None] * x.to(self.a.dtype) + self.s[t, None] * eps.to(self.s.dtype)


class Denoiser(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.time = nn.Embedding(1000, 16)
        self.net = nn.Sequential(nn.Linear(18, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 2))

    def forward(self, x, t):
        e = self.time(t // 10 * 10)
        return self.net(torch.cat([x, e.to(x.dtype)], -1))


def swirl(n):
    u = torch.rand(n) * 9
    return torch.stack([u * u.cos(), u * u.sin()], 1) / 5 + 0.02 * torch.randn(n, 2)


def main():
    torch.manual_seed(44)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sched, net = Schedule().to(device), Denoiser().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    run = []
    for step in range(200):
        x = swirl(256).to(device)
        t = (torch.rand(256, device=device) ** 2 * 1000).long()      # favour low noise
        eps = torch.randn_like(x)
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            pred = net(sched.q_sample(x, t, eps), t)
            loss = F.mse_loss(pred, eps)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        run.append(loss.item())
    print(f"loss last 30 {sum(run[-30:]) / 30:.4f}  signal left at T {sched.a[-1].item():.5f} sigma at t=5 {sched.s[5].item():.5f}")


if __name__ == "__main__":
    main()
