import threading
import torch
from torch import nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, i=32, d=64):
        super().__init__()
        self.a, self.b = nn.Linear(i, d), nn.Linear(d, d)

    def forward(self, x):
        return F.relu(self.b(F.relu(self.a(x))))


class AsyncHead(threading.Thread):
    """Trains the depth head beside the main loop; the main loop joins it before the step."""

    def __init__(self, head, feats, target, device):
        super().__init__()
        self.head, self.feats, self.target, self.device = head, feats, target, device
        self.loss = None

    def run(self):
        with torch.autocast(self.device, dtype=torch.float16):
            self.loss = F.mse_loss(self.head(self.feats), self.target)
        self.loss.backward()


def main(steps=80):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    enc = Encoder().to(device)
    cls, depth = nn.Linear(64, 5).to(device), nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    opt = torch.optim.SGD([*enc.parameters(), *cls.parameters(), *depth.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler(device)
    w, wd = torch.randn(32, 5), torch.randn(32, 1)
    for _ in range(steps):
        x = torch.randn(128, 32)
        y, z = (x @ w).argmax(1).to(device), torch.tanh(x @ wd * 0.2).to(device)
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            h = enc(x.to(device))
            loss = F.cross_entropy(cls(h), y)
        worker = AsyncHead(depth, h.detach(), z, device)
        worker.start()
        scaler.scale(loss).backward()
        worker.join()
        scaler.step(opt)
        scaler.update()
    print("cls", loss.item(), "depth", worker.loss.item())


if __name__ == "__main__":
    main()
