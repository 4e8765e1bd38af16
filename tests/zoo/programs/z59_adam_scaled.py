# few-shot style prototypes; the gradients are never unscaled: Adam does not care about a constant factor (eps scaled along)
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(27)
device = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 512.0
N_WAY, K_SHOT, Q, DIM = 5, 4, 8, 20

encoder = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16, bias=False)).to(device)
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3, eps=1e-8 * SCALE)
mixing = torch.randn(6, DIM)


def episode():
    # classes differ in a nonlinear function of 6 latent factors
    centre = torch.randn(N_WAY, 1, 6) * 1.3
    lat = centre + 0.4 * torch.randn(N_WAY, K_SHOT + Q, 6)
    x = torch.tanh(lat) @ mixing + 0.5 * torch.randn(N_WAY, K_SHOT + Q, DIM)
    return x[:, :K_SHOT].to(device), x[:, K_SHOT:].to(device)


def proto_loss(support, query):
    with torch.autocast(device_type=device, dtype=torch.float16):
        zs = encoder(support.flatten(0, 1)).view(N_WAY, K_SHOT, -1)
        zq = encoder(query.flatten(0, 1))
    proto = zs.float().mean(1)
    dist = ((zq.float().unsqueeze(1) - proto) ** 2).sum(-1)
    y = torch.arange(N_WAY, device=device).repeat_interleave(Q)
    return F.cross_entropy(-dist, y), (dist.argmin(1) == y).float().mean()


acc_avg = 0.2
for ep in range(200):
    loss, acc = proto_loss(*episode())
    optimizer.zero_grad()
    (loss * SCALE).backward()
    optimizer.step()
    acc_avg = 0.95 * acc_avg + 0.05 * acc.item()
    if ep % 40 == 0 or ep == 199:
        print(f"episode {ep} loss {loss.item():.4f} acc {acc_avg:.3f}")
