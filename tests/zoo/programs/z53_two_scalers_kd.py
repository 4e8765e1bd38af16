# mutual distillation of two graph nets, each with its own optimizer and its own scaler (very different scales)
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(15)
device = "cuda" if torch.cuda.is_available() else "cpu"
N, C = 200, 5
centers = torch.randn(C, 10) * 1.2
lab = torch.randint(0, C, (N,))
x = (centers[lab] + torch.randn(N, 10)).to(device)
adj = ((lab[:, None] == lab[None]).float() * (torch.rand(N, N) < 0.15).float() + torch.eye(N))
adj = (adj / adj.sum(1, keepdim=True)).to(device)
lab = lab.to(device)
train = (torch.rand(N) < 0.5).to(device)
noisy = torch.where(torch.rand(N).to(device) < 0.25, torch.randint(0, C, (N,)).to(device), lab)   # annotators disagree


class SGC(nn.Module):
    def __init__(self, h, hops):
        super().__init__()
        self.hops, self.a, self.b = hops, nn.Linear(10, h), nn.Linear(h, C)

    def forward(self, x):
        for _ in range(self.hops):
            x = adj @ x
        return self.b(F.gelu(self.a(x)))


nets = [SGC(16, 1).to(device), SGC(64, 2).to(device)]
opts = [torch.optim.SGD(n.parameters(), lr=0.05, momentum=0.9) for n in nets]
scalers = [torch.amp.GradScaler(device, init_scale=2.0 ** 3), torch.amp.GradScaler(device, init_scale=2.0 ** 15)]

for epoch in range(120):
    sel = train & (torch.rand(N) < 0.5).to(device)          # a fresh half of the labelled nodes
    with torch.autocast(device, dtype=torch.float16):
        outs = [net(x) for net in nets]
    for k in (0, 1):
        opts[k].zero_grad()
        mine, other = outs[k], outs[1 - k].detach()
        loss = F.cross_entropy(mine[sel].float(), noisy[sel])
        kd = F.kl_div(F.log_softmax(mine[sel].float() / 2, 1), F.softmax(other[sel].float() / 2, 1), reduction="batchmean")
        scalers[k].scale(loss).backward(retain_graph=True)
        scalers[k].scale(kd * 4).backward()
        scalers[k].unscale_(opts[k])
        nn.utils.clip_grad_norm_(nets[k].parameters(), 1.0)
        scalers[k].step(opts[k])
        scalers[k].update()
    if epoch % 30 == 0 or epoch == 119:
        accs = [(o.argmax(1) == lab)[~train].float().mean().item() for o in outs]
        print(f"epoch {epoch} loss {loss.item():.4f} test acc {accs[0]:.3f} {accs[1]:.3f}")
