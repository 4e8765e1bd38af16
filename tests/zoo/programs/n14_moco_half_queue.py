"""Contrastive pretraining with a momentum encoder and a queue of negatives kept in half precision."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
QUEUE, DIM, MOMENTUM, TEMP = 1024, 32, 0.99, 0.2


class Encoder(nn.Module):
    def __init__(self, features=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.proj = nn.Linear(96, DIM)

    def forward(self, x):
        return F.normalize(self.proj(self.trunk(x)).float(), dim=1)


def views(n, gen, basis):
    z = torch.randn(n, 8, generator=gen)
    clean = torch.tanh(z @ basis)
    make = lambda: (clean * (0.8 + 0.4 * torch.rand(n, 1, generator=gen)) + 0.3 * torch.randn(n, 64, generator=gen)).to(device)
    return make(), make()


@torch.no_grad()
def momentum_update(q_enc, k_enc):
    for q, k in zip(q_enc.parameters(), k_enc.parameters()):
        k.mul_(MOMENTUM).add_(q, alpha=1 - MOMENTUM)


def main():
    torch.manual_seed(20)
    gen = torch.Generator().manual_seed(21)
    basis = torch.randn(8, 64, generator=gen) / 2
    q_enc = Encoder().to(device)
    k_enc = copy.deepcopy(q_enc).requires_grad_(False)
    queue = F.normalize(torch.randn(QUEUE, DIM, generator=gen), dim=1).to(device).half()
    ptr = 0
    opt = torch.optim.SGD(q_enc.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 14, growth_interval=50)
    for step in range(150):
        a, b = views(128, gen, basis)
        with torch.autocast(device, dtype=torch.float16):
            q = q_enc(a)
            with torch.no_grad():
                k = k_enc(b)
            pos = (q * k).sum(1, keepdim=True)
            neg = q @ queue.t().to(q.dtype)
            logits = torch.cat([pos, neg.float()], 1) / TEMP
            loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=device))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        momentum_update(q_enc, k_enc)
        queue[ptr:ptr + len(k)] = k.to(queue.dtype)
        ptr = (ptr + len(k)) % QUEUE
        if step % 25 == 0 or step == 149:
            print(f"step {step:3d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
