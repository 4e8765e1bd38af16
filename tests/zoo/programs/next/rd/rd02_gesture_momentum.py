"""Hand gestures from a wrist accelerometer: a deep momentum residual network that stores no activations.

Momentum residual layers can be inverted: the backward pass walks from the last state back to the first and works out
each layer's input again, so that memory does not grow with depth.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
WINDOW, CHANNELS, GESTURES, WIDTH, DEPTH, GAMMA = 32, 3, 8, 48, 14, 0.5


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class InvertibleStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, v, blocks, *weights):
        for block in blocks:
            v = GAMMA * v + (1 - GAMMA) * block(x)
            x = x + v
        ctx.blocks, ctx.weights = blocks, weights
        ctx.save_for_backward(x, v)
        return x, v

    @staticmethod
    def backward(ctx, grad_x, grad_v):
        x, v = ctx.saved_tensors
        grads = {}
        for block in reversed(ctx.blocks):
            x = x - v
            with torch.enable_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                inputs = x.detach().requires_grad_()
                out = block(inputs)
            v = (v - (1 - GAMMA) * out.detach()) / GAMMA
            grad_v = grad_v + grad_x
            found = torch.autograd.grad(out, [inputs, *block.parameters()], (1 - GAMMA) * grad_v.to(out.dtype))
            grad_x = grad_x + found[0]
            grad_v = GAMMA * grad_v
            grads.update({id(p): g for p, g in zip(block.parameters(), found[1:])})
        return grad_x, grad_v, None, *[grads[id(w)] for w in ctx.weights]


class GestureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(WINDOW * CHANNELS, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, GESTURES)

    def forward(self, signal):
        x = self.stem(signal.flatten(1))
        v = torch.zeros_like(x)
        x, v = InvertibleStack.apply(x, v, list(self.blocks), *self.blocks.parameters())
        return self.head(x)


shape = torch.randn(GESTURES, CHANNELS, 3)
rate = 1.0 + torch.rand(GESTURES, 1, 3) * 3


def windows(n):
    """Windows of gestures with a random phase, speed and sensor noise."""
    label = torch.randint(0, GESTURES, (n,))
    t = torch.linspace(0, 1, WINDOW).view(1, 1, WINDOW, 1)
    speed = (1 + 0.1 * torch.randn(n, 1, 1, 1)) * rate[label].unsqueeze(2)
    phase = 4.0 * torch.rand(n, 1, 1, 1)
    signal = (shape[label].unsqueeze(2) * torch.sin(6.28 * speed * t + phase)).sum(-1)
    return (signal + 0.6 * torch.randn_like(signal)).to(device), label.to(device)


model = GestureNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
STEPS = 60
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
for step in range(STEPS):
    signal, label = windows(128)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(signal), label)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    signal, label = windows(4000)
    accuracy = (model(signal).argmax(1) == label).float().mean().item()
print(f"metric {accuracy:.4f}")
