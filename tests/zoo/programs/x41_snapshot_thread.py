# Fine-tuning a pretrained regressor with a low rate; a helper thread exports and scores a snapshot after every update.
import threading
import torch
import torch.nn as nn


def pretrain(device):
    net = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    w = torch.randn(12)
    for _ in range(100):
        x = torch.randn(128, 12)
        loss = nn.functional.mse_loss(net(x.to(device)), torch.tanh(x @ w)[:, None].to(device))
        opt.zero_grad(); loss.backward(); opt.step()
    return net, w


class Snapshot(threading.Thread):
    def __init__(self, model, x, y):
        super().__init__()
        self.model, self.x, self.y = model, x, y

    def run(self):
        self.model.half()
        with torch.no_grad():
            self.score = nn.functional.mse_loss(self.model(self.x.half()).float(), self.y).item()
        self.model.float()


def main():
    torch.manual_seed(107)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net, w = pretrain(device)
    opt = torch.optim.SGD(net.parameters(), lr=4e-6, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0)
    shift = 0.4 * torch.randn(12)
    data = lambda n: (lambda x: (x.to(device), torch.tanh(x @ (w + shift))[:, None].to(device)))(torch.randn(n, 12))
    xv, yv = data(512)
    for step in range(300):
        x, y = data(128)
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y) * 4
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        snap = Snapshot(net, xv, yv)
        snap.start()
        snap.join()
        if step % 100 == 99 or step == 0:
            print(f"step {step} validation {snap.score:.6f}")


main()
