"""Instance discrimination with a memory bank (Wu et al.), bank kept in bf16 to save memory."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
N, D = 256, 64
data = torch.randn(N, 32)

net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, D)).to(device)
bank = F.normalize(torch.randn(N, D), dim=1).to(device).bfloat16()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

for step in range(600):
    idx = torch.randperm(N)[:128]
    x = data[idx].to(device)
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        f = F.normalize(net(x), dim=1)
        logits = f @ bank.t() / 0.1
        loss = F.cross_entropy(logits, idx.to(device))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    with torch.no_grad():
        old = bank[idx]
        bank[idx] = old + 0.001 * (f.detach().to(bank.dtype) - old)
    if step % 100 == 0:
        print(step, loss.item())
