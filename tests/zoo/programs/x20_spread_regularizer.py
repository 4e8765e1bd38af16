# Speech frames: phone classifier plus a projection whose overall variance is pulled to one.
import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(24, 64), nn.ReLU())
        self.phones = nn.Linear(64, 10)
        self.project = nn.Linear(64, 64)

    def forward(self, x):
        h = self.enc(x)
        return self.phones(h.mean(1)), self.project(h.detach())


def spread(z, target=1.0):
    return (z.var() - target) ** 2


def main():
    torch.manual_seed(29)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    protos = torch.randn(10, 1, 24)
    for it in range(50):
        y = torch.randint(10, (32,))
        x = protos[y] + torch.randn(32, 250, 24)
        with torch.autocast(device, dtype=torch.float16):
            logits, z = model(x.to(device))
            ce = F.cross_entropy(logits, y.to(device))
            reg = spread(z)
            loss = ce + 0.02 * reg
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if it % 10 == 0 or it == 49:
            print(it, "ce %.4f reg %.4f" % (ce.item(), reg.item()))


main()
