import torch

from networks import DuelingDQN

device = "cuda"
net = DuelingDQN(obs_shape=(4, 28, 28), n_actions=3).to(device)
opt = torch.optim.Adam(net.parameters(), 1e-4)
for _ in range(30):
    obs = torch.randint(0, 256, (16, 4, 28, 28), device=device).float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = net(obs).float().pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
