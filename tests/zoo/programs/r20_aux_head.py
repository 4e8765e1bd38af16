from dataclasses import dataclass, field
import torch
import torch.nn.functional as F
from torch import nn, Tensor


@dataclass
class HP:
    seed: int = 4
    steps: int = 60
    bs: int = 8
    aux_weight: float = 1e-5
    lr: float = 1e-3
    scale: float = 128.0
    width: int = 16


class SegNet(nn.Module):
    def __init__(self, hp: HP):
        super().__init__()
        w = hp.width
        self.enc = nn.Sequential(nn.Conv2d(3, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1), nn.ReLU())
        self.cls = nn.Linear(w, 4)
        self.flow = nn.Sequential(nn.Conv2d(w, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, w, 1), nn.ReLU(), nn.Conv2d(w, 2, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.enc(x)
        return self.cls(h.amax((2, 3))), self.flow(h.detach())


class Trainer:
    def __init__(self, hp: HP):
        torch.manual_seed(hp.seed)
        self.hp = hp
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = SegNet(hp).to(self.device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=hp.lr, eps=1e-15)
        # a scale found by hand for the classifier
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=hp.scale, growth_interval=10**6)

    def data(self):
        y = torch.randint(0, 4, (self.hp.bs,))
        x = 0.3 * torch.rand(self.hp.bs, 3, 32, 32)
        for i, c in enumerate(y.tolist()):
            x[i, c % 3, 8 * c : 8 * c + 6, 5:20] += 1.0 + c // 3
        flow = torch.stack([x[:, 0] - x[:, 1], x[:, 2]], 1) * 0.1
        return x.to(self.device), y.to(self.device), flow.to(self.device)

    def step(self):
        x, y, flow = self.data()
        with torch.autocast(self.device.type, dtype=torch.float16):
            logits, pred = self.net(x)
            main = F.cross_entropy(logits, y)
            aux = F.smooth_l1_loss(pred, flow)
            loss = main + self.hp.aux_weight * aux
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return main.item(), aux.item()

    def fit(self):
        for i in range(self.hp.steps):
            m, a = self.step()
        print(f"main {m:.4f} aux {a:.6f}")


Trainer(HP()).fit()
