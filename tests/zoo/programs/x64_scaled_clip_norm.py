# Text classifier, static loss scale, clipping done in scaled units.
import torch
import torch.nn as nn

torch.manual_seed(233)
device = "cuda" if torch.cuda.is_available() else "cpu"
SCALE, MAX_NORM = 2048.0, 1.0
net = nn.Sequential(nn.EmbeddingBag(500, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
topic = torch.randn(4, 500)
for it in range(200):
    y = torch.randint(4, (96,))
    x = torch.multinomial(topic[y].softmax(1), 20)
    with torch.autocast(device, dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
    opt.zero_grad()
    (SCALE * loss).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), SCALE * MAX_NORM)
    if torch.isfinite(norm):
        for p in net.parameters():
            p.grad.mul_(1 / SCALE)
        opt.step()
    if it % 40 == 0 or it == 199:
        print(it, f"{loss.item():.4f}")
