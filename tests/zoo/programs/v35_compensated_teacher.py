"""Self-distillation on spectral series: the EMA teacher lives in bfloat16 with a compensation buffer (Kahan)."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.body(x))


class KahanEMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).to(torch.bfloat16).requires_grad_(False)
        self.comp = [p.detach().float() - q.float() for p, q in zip(model.parameters(), self.model.parameters())]
        self.comp = [c.to(torch.bfloat16) for c in self.comp]

    @torch.no_grad()
    def update(self, model):
        for i, (t, s) in enumerate(zip(self.model.parameters(), model.parameters())):
            full = t.float() + self.comp[i].float()
            full += (1 - self.decay) * (s - full)
            t.copy_(full)
            self.comp[i].copy_(full - t.float())


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    g = torch.Generator().manual_seed(1)
    centers = torch.randn(5, 40, generator=g)
    net = Student().to(device)
    ema = KahanEMA(net, 0.99)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(250):
        y = torch.randint(0, 5, (128,), generator=g)
        x = (centers[y] + 1.6 * torch.randn(128, 40, generator=g)).to(device)
        with torch.no_grad():
            soft = (ema.model(x.to(torch.bfloat16)).float() / 2).softmax(1)
        with torch.autocast(device, dtype=torch.bfloat16):
            out = net(x)
            loss = F.cross_entropy(out, y.to(device)) + 0.5 * F.kl_div((out.float() / 2).log_softmax(1), soft, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(net)
        if step % 50 == 49:
            d = torch.cat([(a.float() - b).flatten() for a, b in zip(ema.model.parameters(), net.parameters())]).norm()
            print(f"{step + 1} loss {loss.item():.4f} teacher-student distance {d.item():.4f}")


main()
