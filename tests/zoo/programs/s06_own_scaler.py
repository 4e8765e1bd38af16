import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicScale:
    def __init__(self, s=2.0**15, up=200):
        self.s, self.up, self.good = s, up, 0

    def backward(self, loss):
        (loss * self.s).backward()

    def unscale(self, params):
        ok = True
        for p in params:
            if p.grad is not None:
                p.grad.mul_(1.0 / self.s)
                ok = ok and bool(torch.isfinite(p.grad).all())
        return ok

    def adjust(self, ok):
        if not ok:
            self.s, self.good = self.s / 2, 0
        else:
            self.good += 1
            if self.good == self.up:
                self.s, self.good = self.s * 2, 0


class SeqTagger(nn.Module):
    def __init__(self, v=50, d=40):
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.f = nn.ModuleList([nn.Linear(d, d) for _ in range(2)])
        self.b = nn.ModuleList([nn.Linear(d, d, bias=False) for _ in range(2)])
        self.o = nn.Linear(2 * d, 4)

    def scan(self, x, k):
        h, out = x.new_zeros(x.shape[0], x.shape[2]), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.f[k](x[:, t]) + self.b[k](h))
            out.append(h)
        return torch.stack(out, 1)

    def forward(self, x):
        e = self.e(x)
        return self.o(torch.cat([self.scan(e, 0), self.scan(e.flip(1), 1).flip(1)], -1))


def main():
    torch.manual_seed(3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net, amp = SeqTagger().to(device), DynamicScale()
    opt = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
    params = list(net.parameters())
    for i in range(80):
        x = torch.randint(0, 50, (32, 12))
        y = (x % 2) * 2 + (x.roll(1, 1) % 2)
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = net(x.to(device))
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.to(device).flatten())
        amp.backward(loss)
        ok = amp.unscale(params)
        if ok:
            nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
        amp.adjust(ok)
    print("loss", loss.item(), "scale", amp.s)


main()
