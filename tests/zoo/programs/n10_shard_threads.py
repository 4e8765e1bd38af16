"""Flight delay model; the batch is split over two threads that share the weights and one loss scale."""
import threading

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(70)


class DelayNet(nn.Module):
    def __init__(self, n_air=40, d=12):
        super().__init__()
        self.origin = nn.Embedding(n_air, d)
        self.dest = nn.Embedding(n_air, d)
        self.mlp = nn.Sequential(nn.Linear(2 * d + 6, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))

    def forward(self, o, d, x):
        return self.mlp(torch.cat([self.origin(o), self.dest(d), x], 1)).squeeze(1)


busy = torch.randn(40)
coef = torch.tensor([6.0, -4.0, 3.0, 0.0, 2.0, 5.0])


def flights(n):
    o, d = torch.randint(0, 40, (n,)), torch.randint(0, 40, (n,))
    x = torch.randn(n, 6)
    delay = 8 * busy[o] + 4 * busy[d] + x @ coef + 6 * x[:, 0] * x[:, 1] + 3 * torch.randn(n)
    return o.to(device), d.to(device), x.to(device), delay.to(device)


class Shard(threading.Thread):
    def __init__(self, model, params, part, scaler):
        super().__init__()
        self.model, self.params, self.part, self.scaler = model, params, part, scaler

    def run(self):
        o, d, x, y = self.part
        with torch.autocast(device, dtype=torch.float16):
            pred = self.model(o, d, x)
            loss = nn.functional.huber_loss(pred.float(), y / 10.0)
        self.grads = torch.autograd.grad(self.scaler.scale(loss), self.params)
        self.loss = loss.item()


model = DelayNet().to(device)
params = list(model.parameters())
opt = torch.optim.AdamW(params, lr=3e-3)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 17, growth_interval=40)
for step in range(150):
    batch = flights(256)
    shards = [Shard(model, params, [t[k::2] for t in batch], scaler) for k in range(2)]
    for s in shards:
        s.start()
    for s in shards:
        s.join()
    for p, a, b in zip(params, shards[0].grads, shards[1].grads):
        p.grad = (a + b) / 2
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(params, 5.0)
    scaler.step(opt)
    scaler.update()
    if step % 30 == 29:
        print(f"step {step + 1} loss {sum(s.loss for s in shards) / 2:.4f} grad norm {norm.item():.3f} scale {scaler.get_scale():.0f}")

with torch.no_grad():
    o, d, x, y = flights(4000)
    print(f"mean abs error {(model(o, d, x) * 10 - y).abs().mean().item():.2f} minutes")
