"""Committee of regressors for pump efficiency; members run in a thread pool, one optimizer each."""
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn as nn

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
MEMBERS = 3


def member(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1)).to(device)


class Committee:
    def __init__(self):
        self.nets = nn.ModuleList([member(100 + k) for k in range(MEMBERS)])
        self.opts = [torch.optim.Adam(n.parameters(), lr=3e-3) for n in self.nets]
        self.pool = ThreadPoolExecutor(MEMBERS)

    def outputs(self, x):
        # inputs travel in half precision; the first member is the fast one and works under autocast
        jobs = [self.pool.submit(self._one, k, x) for k in range(MEMBERS)]
        return [j.result() for j in jobs]

    def _one(self, k, x):
        if k == 0:
            with torch.autocast(device, dtype=torch.float16):
                return self.nets[k](x).squeeze(1).float()
        return self.nets[k](x.float()).squeeze(1)


g = torch.Generator().manual_seed(4)


def pumps(n):
    x = torch.randn(n, 5, generator=g)
    flow = x[:, 0] + 0.3 * x[:, 1]
    y = 0.7 - 0.2 * flow ** 2 + 0.1 * torch.sin(3 * x[:, 2]) * x[:, 3] + 0.02 * torch.randn(n, generator=g)
    return x.half().to(device), y.to(device)


com = Committee()
scaler = torch.amp.GradScaler(device, init_scale=4096.0)
test_x, test_y = pumps(1000)
for step in range(1, 241):
    x, y = pumps(128)
    with torch.autocast(device, dtype=torch.float16):
        preds = com.outputs(x)
    losses = [(p - y).square().mean() for p in preds]
    for o in com.opts:
        o.zero_grad()
    scaler.scale(sum(losses)).backward()
    for o in com.opts:
        scaler.step(o)
    scaler.update()
    if step % 60 == 0:
        with torch.no_grad():
            p = torch.stack(com.outputs(test_x))
            print(f"step {step} losses {[round(l.item(), 4) for l in losses]} committee mse "
                  f"{(p.mean(0) - test_y).square().mean().item():.5f} spread {p.std(0).mean().item():.4f}")
com.pool.shutdown()
