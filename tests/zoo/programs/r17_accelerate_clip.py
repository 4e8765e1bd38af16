import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed


class Forecaster(nn.Module):
    def __init__(self, window=24, d=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(window, d), nn.GELU(), nn.Linear(d, d), nn.GELU(), nn.Linear(d, 6))

    def forward(self, x):
        return self.net(x)


def series(n=512):
    t = torch.arange(30.0)
    p = torch.rand(n, 1) * 6
    f = torch.rand(n, 1) * 0.5 + 0.2
    s = torch.sin(f * t + p) + 0.05 * torch.randn(n, 30)
    return TensorDataset(s[:, :24], s[:, 24:])


def main():
    set_seed(0)
    accelerator = Accelerator(mixed_precision="fp16")
    loader = DataLoader(series(), batch_size=64, shuffle=True)
    model = Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(8):
        for x, y in loader:
            with accelerator.autocast():
                loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(epoch, loss.item())


if __name__ == "__main__":
    main()
