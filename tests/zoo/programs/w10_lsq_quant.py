"""Quantization-aware training with learned step sizes (LSQ): own autograd Function with gradient scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class LSQ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, step, qn, qp, g):
        ctx.save_for_backward(v, step)
        ctx.lim = (qn, qp, g)
        return (v / step).round().clamp(qn, qp) * step

    @staticmethod
    def backward(ctx, grad):
        v, step = ctx.saved_tensors
        qn, qp, g = ctx.lim
        q = v / step.to(v.dtype)
        inside = (q >= qn) & (q <= qp)
        grad_v = torch.where(inside, grad, torch.zeros_like(grad)).to(v.dtype)
        delta = torch.where(inside, q.round() - q, q.round().clamp(qn, qp))
        grad_s = (grad.to(v.dtype) * g * delta).sum(dtype=torch.float32)
        return grad_v, grad_s.to(step.dtype).view_as(step), None, None, None


class QConv(nn.Conv2d):
    def __init__(self, cin, cout, bits=3):
        super().__init__(cin, cout, 3, padding=1)
        self.qp = 2 ** bits - 1
        self.act_step = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x):
        g = 1.0 / (x.numel() / x.shape[0] * self.qp) ** 0.5
        x = LSQ.apply(x, self.act_step, 0, self.qp, g)
        return super().forward(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 12, 3, padding=1)
        self.q1, self.q2 = QConv(12, 12), QConv(12, 12)
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.q1(x))
        x = F.relu(self.q2(x))
        return self.fc(x.mean((2, 3)))


def digits(n=24):
    y = torch.randint(0, 5, (n,))
    x = torch.rand(n, 1, 20, 20) * 0.6
    for i, c in enumerate(y.tolist()):
        x[i, 0, :, 3 * c:3 * c + 2] += 1.0
        x[i, 0, 2 * c:2 * c + 2] += 0.7
    return x, y


if __name__ == "__main__":
    torch.manual_seed(8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Net().to(device)
    steps = [p for n, p in net.named_parameters() if n.endswith("act_step")]
    rest = [p for n, p in net.named_parameters() if not n.endswith("act_step")]
    opt = torch.optim.Adam([{"params": rest}, {"params": steps, "lr": 1e-2}], lr=2e-3)
    for it in range(120):
        x, y = digits()
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        opt.step()
        if it % 40 == 39:
            print(f"{it + 1} loss {loss.item():.4f} act steps {[round(s.item(), 4) for s in steps]}")
