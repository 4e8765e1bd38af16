"""bf16 model with FP32 master weights and Kahan-free SGD, by hand."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MasterOptimizer:
    def __init__(self, model, lr, momentum=0.9):
        self.model_params = [p for p in model.parameters() if p.requires_grad]
        self.master = [p.detach().float().clone() for p in self.model_params]
        for m in self.master:
            m.requires_grad_(True)
        self.opt = torch.optim.SGD(self.master, lr=lr, momentum=momentum)

    def step(self):
        for m, p in zip(self.master, self.model_params):
            m.grad = p.grad.float()
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.model_params):
                p.copy_(m)

    def zero_grad(self):
        for p in self.model_params:
            p.grad = None


class ConvMixer(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.stem = nn.Conv1d(4, d, 4, 4)
        self.dw = nn.ModuleList([nn.Conv1d(d, d, 5, padding=2, groups=d) for _ in range(2)])
        self.pw = nn.ModuleList([nn.Conv1d(d, d, 1) for _ in range(2)])
        self.head = nn.Linear(d, 3)

    def forward(self, x):
        h = F.gelu(self.stem(x))
        for a, b in zip(self.dw, self.pw):
            h = F.gelu(b(h + F.gelu(a(h))))
        return self.head(h.mean(-1))


def main():
    torch.manual_seed(0)
    model = ConvMixer().bfloat16()
    opt = MasterOptimizer(model, lr=0.02)
    t = torch.arange(64.0)
    for i in range(80):
        y = torch.randint(0, 3, (32,))
        ph = torch.rand(32, 4, 1) * 6.28
        x = torch.sin(t * (0.2 + 0.25 * y)[:, None, None] + ph) + 0.2 * torch.randn(32, 4, 64)
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
