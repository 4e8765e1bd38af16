import torch
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"

V_REST, V_TH, SLOPE = -65.0, -50.0, 25.0   # mV, mV, 1/mV
STEPS_PER_TRIAL, SENSORS, GESTURES = 10, 32, 4


class FastSigmoidSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad / (1.0 + SLOPE * u.abs()) ** 2


spike = FastSigmoidSpike.apply


class LIF(nn.Module):
    def __init__(self, n_in, n_out, leak=0.8):
        super().__init__()
        self.current = nn.Linear(n_in, n_out)
        nn.init.normal_(self.current.weight, std=0.03)
        self.leak = leak

    def forward(self, events):
        drive = self.current(events)
        v = torch.full_like(drive[:, 0], V_REST)
        out = []
        for t in range(events.shape[1]):
            v = V_REST + self.leak * (v - V_REST) + drive[:, t]
            s = spike(v - V_TH)
            v = v - (v - V_REST).detach() * s.detach()
            out.append(s)
        return torch.stack(out, 1)


class GestureSNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = LIF(SENSORS, 48)
        self.readout = nn.Linear(48, GESTURES)

    def forward(self, events):
        return self.readout(self.hidden(events).mean(1) * 3.0)


def record(n):
    """Event counts of a moving edge: each gesture sweeps the sensor row its own way."""
    y = torch.randint(0, GESTURES, (n,))
    t = torch.arange(STEPS_PER_TRIAL)[None, :, None].float()
    pos = torch.arange(SENSORS)[None, None].float()
    start = torch.tensor([2.0, 29.0, 10.0, 20.0])[y][:, None, None] + torch.randn(n, 1, 1)
    speed = torch.tensor([1.0, -1.0, 0.3, -0.3])[y][:, None, None]
    rate = 3.0 * torch.exp(-0.5 * ((pos - start - speed * t) / 2.0) ** 2) + 0.3
    return torch.poisson(rate).to(device), y.to(device)


def accuracy(model, x, y):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        return (model(x).argmax(-1) == y).float().mean().item()


train, test = record(800), record(400)
model = GestureSNN().to(device)
opt = torch.optim.Adam(model.parameters(), lr=2e-2, eps=1e-12)
scaler = torch.amp.GradScaler("cuda")
for it in range(120):
    idx = torch.randint(0, 800, (64,))
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(train[0][idx])
        loss = nn.functional.cross_entropy(logits, train[1][idx])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 30 == 0:
        print(it, round(loss.item(), 4))
print(f"metric {accuracy(model, *test):.4f}")
