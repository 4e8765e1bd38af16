import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, o)).to(device)


gen, disc = mlp(8, 2), mlp(2, 1)
opt_g = torch.optim.RMSprop(gen.parameters(), 5e-4)
opt_d = torch.optim.RMSprop(disc.parameters(), 5e-4)
sg, sd = torch.cuda.amp.GradScaler(), torch.cuda.amp.GradScaler()

for it in range(40):
    for _ in range(2):
        real = torch.randn(64, 2, device=device)
        with torch.cuda.amp.autocast():
            with torch.no_grad():
                fake = gen(torch.randn(64, 8, device=device))
            ld = disc(fake).float().mean() - disc(real).float().mean()
        opt_d.zero_grad()
        sd.scale(ld).backward()
        sd.unscale_(opt_d)
        nn.utils.clip_grad_norm_(disc.parameters(), 0.5)
        sd.step(opt_d)
        sd.update()
    with torch.cuda.amp.autocast():
        lg = -disc(gen(torch.randn(64, 8, device=device))).float().mean()
    opt_g.zero_grad()
    sg.scale(lg).backward()
    sg.unscale_(opt_g)
    nn.utils.clip_grad_norm_(gen.parameters(), 0.5)
    sg.step(opt_g)
    sg.update()
print(ld.item(), lg.item(), sd.get_scale(), sg.get_scale())
