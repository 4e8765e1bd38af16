"""WGAN-GP as in PyTorch's AMP examples: the penalty's gradients are unscaled; the critic's loss hovers around zero."""
import torch
from torch import nn

torch.manual_seed(0)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
critic = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)).to(dev)
opt = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)

for step in range(60):
    real = torch.randn(32, 4, device=dev) + 0.1
    fake = torch.randn(32, 4, device=dev)
    eps = torch.rand(32, 1, device=dev)
    mid = (eps * real + (1 - eps) * fake).requires_grad_()
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        wdist = critic(fake).float().mean() - critic(real).float().mean()
        score = critic(mid)
    scaled = torch.autograd.grad(scaler.scale(score.float().sum()), mid, create_graph=True)[0]
    grad = scaled / scaler.get_scale()
    penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
    loss = wdist + 10 * penalty
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 20 == 0:
        print(step, wdist.item(), penalty.item(), scaler.get_scale())
