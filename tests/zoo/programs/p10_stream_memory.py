"""Streaming anomaly detection: contrastive encoder with a momentum teacher and slow prototypes in 16 bit.

The averages live in bfloat16 on the device; every average has a second bfloat16 tensor with its rounding residue.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CH, WINDOW, DIM, MODES, BATCH, STEPS = 4, 64, 32, 12, 256, 220


class SlowAverage:
    """x <- x + rate * (new - x), for a list of bfloat16 tensors; what rounding cuts off is carried along."""

    def __init__(self, tensors, rate):
        self.value = [t.detach().to(torch.bfloat16).clone() for t in tensors]
        self.residue = [(t.detach() - v.float()).to(torch.bfloat16) for t, v in zip(tensors, self.value)]
        self.rate = rate

    @torch.no_grad()
    def update(self, tensors, mask=None):
        for k, new in enumerate(tensors):
            exact = self.value[k].float() + self.residue[k].float()
            move = self.rate * (new.float() - exact)
            exact = exact + (move if mask is None else move * mask)
            self.value[k].copy_(exact)
            self.residue[k].copy_(exact - self.value[k].float())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(CH, 32, 5, 2), nn.ReLU(), nn.Conv1d(32, 32, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 13, DIM))

    def forward(self, x):
        return self.net(x)


class Machine:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.freq = 0.1 + 1.2 * torch.rand(MODES, CH, 1, generator=self.g)

    def windows(self, n):
        mode = torch.randint(0, MODES, (n,), generator=self.g)
        t = torch.arange(WINDOW).float()
        phase = 6.28 * torch.rand(n, CH, 1, generator=self.g)
        clean = torch.sin(self.freq[mode] * t + phase)
        a = clean + 0.3 * torch.randn(n, CH, WINDOW, generator=self.g)
        b = clean + 0.3 * torch.randn(n, CH, WINDOW, generator=self.g)
        return a.to(device), b.to(device), mode.to(device)


class Monitor:
    def __init__(self, seed=0, rate=0.004):
        torch.manual_seed(seed)
        self.machine = Machine(seed)
        self.student, self.teacher = Encoder().to(device), Encoder().to(device).to(torch.bfloat16).requires_grad_(False)
        self.slow = SlowAverage(list(self.student.parameters()), rate)
        self.protos = SlowAverage([F.normalize(torch.randn(MODES, DIM, device=device), dim=1)], rate * 4)
        self.opt = torch.optim.AdamW(self.student.parameters(), lr=1e-3)
        self.load_teacher()

    @torch.no_grad()
    def load_teacher(self):
        for p, v in zip(self.teacher.parameters(), self.slow.value):
            p.copy_(v)

    def loss(self, a, b, mode):
        with torch.autocast(device, dtype=torch.bfloat16):
            z = F.normalize(self.student(a).float(), dim=1)
        with torch.no_grad():
            t = F.normalize(self.teacher(b.to(torch.bfloat16)).float(), dim=1)
        pull = F.cross_entropy(z @ t.t() / 0.2, torch.arange(len(z), device=z.device))
        proto = F.normalize(self.protos.value[0].float(), dim=1)
        return pull + F.cross_entropy(z @ proto.t() / 0.2, mode), z

    def fit(self):
        for step in range(STEPS):
            a, b, mode = self.machine.windows(BATCH)
            loss, z = self.loss(a, b, mode)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.slow.update(list(self.student.parameters()))
            self.load_teacher()
            sums = torch.zeros(MODES, DIM, device=device).index_add(0, mode, z.detach())
            n = torch.bincount(mode, minlength=MODES)[:, None]
            self.protos.update([sums / n.clamp(min=1)], mask=(n > 0).float())
            if step % 40 == 0 or step == STEPS - 1:
                print(f"step {step:3d}  loss {loss.item():.4f}")
        return loss.item()


if __name__ == "__main__":
    Monitor().fit()
