import torch
from torch import nn


class FastScaler(torch.amp.GradScaler):
    """Unscales matrices in one multi-tensor call; vectors are few, PyTorch's own loop has them (so we thought)."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None and p.ndim > 1]
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)
        return {found_inf.device: found_inf}


torch.manual_seed(0)
device = "cuda"
net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
scaler = FastScaler(device, init_scale=128.0)
w = torch.randn(12, 3)
for step in range(80):
    x = torch.randn(64, 12)
    y = (x @ w).argmax(1)
    with torch.autocast(device, dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 20 == 19:
        print(step, loss.item(), scaler.get_scale())
