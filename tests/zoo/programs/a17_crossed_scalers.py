import torch
from torch import nn

torch.manual_seed(0)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, o)).to(dev)


enc, clf = mlp(16, 8), mlp(8, 4)
opt_e = torch.optim.SGD(enc.parameters(), lr=0.1)
opt_c = torch.optim.SGD(clf.parameters(), lr=0.1)
s_e = torch.amp.GradScaler("cuda", init_scale=2.0**15)
s_c = torch.amp.GradScaler("cuda", init_scale=2.0**10)
truth = torch.randn(16, 4)

for i in range(80):
    x = torch.randn(64, 16)
    y = (x @ truth).argmax(1).to(dev)
    x = x.to(dev)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(clf(enc(x)), y)
    opt_e.zero_grad()
    opt_c.zero_grad()
    s_c.scale(loss).backward()
    # the encoder has a scaler of its own
    s_e.scale(torch.zeros((), device=dev))
    s_e.step(opt_e)
    s_c.step(opt_c)
    s_e.update()
    s_c.update()
    if i % 20 == 19:
        print(i, loss.item())
