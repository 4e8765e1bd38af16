# Half-precision weights with a GradScaler that is allowed to unscale half gradients.
import torch
import torch.nn as nn


class HalfGradScaler(torch.amp.GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Linear(16, 32)
        self.item = nn.Linear(16, 32)
        self.mlp = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.mlp(torch.cat([torch.tanh(self.user(u)), torch.tanh(self.item(i))], 1)).squeeze(1)


def main():
    torch.manual_seed(191)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Ranker().to(device).half()
    opt = torch.optim.SGD(net.parameters(), lr=3e4)           # the loss is in squared currency units (millions)
    scaler = HalfGradScaler(device, init_scale=2.0 ** 16)
    U = torch.randn(16)
    for it in range(200):
        u, i = torch.randn(128, 16), torch.randn(128, 16)
        y = (torch.tanh(u @ U / 4) * i[:, 0]).to(device)
        pred = net(u.to(device).half(), i.to(device).half())
        loss = nn.functional.mse_loss(pred.float(), y) * 1e-5
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if it % 40 == 0 or it == 199:
            print(f"{it} loss {loss.item() * 1e5:.4f}")


main()
