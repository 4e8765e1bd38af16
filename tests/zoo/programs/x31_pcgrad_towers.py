# One ranking score for clicks and for margin on a shared representation, conflicting gradients are projected (PCGrad on the representation).
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(61)
device = "cuda" if torch.cuda.is_available() else "cpu"


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
        self.score = nn.Linear(16, 1)


def project(g1, g2):
    dot = (g1 * g2).sum()
    if dot < 0:
        return g1 - dot / (g2 * g2).sum() * g2, g2 - dot / (g1 * g1).sum() * g1
    return g1, g2


net = MultiTask().to(device)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
w = torch.randn(20)
for it in range(200):
    x = torch.randn(2048, 20)
    s = x @ w / 4
    click = (torch.sigmoid(3 * s) > torch.rand(2048)).float().to(device)
    margin = (-s + 0.3 * x[:, 0] ** 2 + 0.1 * torch.randn(2048)).to(device)
    with torch.autocast(device, dtype=torch.float16):
        z = net.bottom(x.to(device))
        l1 = F.binary_cross_entropy_with_logits(net.score(z).squeeze(1), click)
        l2 = F.smooth_l1_loss(net.score(z).squeeze(1), margin)
    opt.zero_grad()
    g1, = torch.autograd.grad(l1, z, retain_graph=True)
    g2, = torch.autograd.grad(l2, z, retain_graph=True)
    (l1 + l2).backward(inputs=list(net.score.parameters()), retain_graph=True)
    p1, p2 = project(g1, g2)
    z.backward(p1 + p2, inputs=list(net.bottom.parameters()))
    opt.step()
    if it % 40 == 0 or it == 199:
        print(f"{it} click {l1.item():.4f} margin {l2.item():.4f}")
