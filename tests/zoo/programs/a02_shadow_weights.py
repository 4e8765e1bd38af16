import torch
from torch import nn


class Shadow:
    """Polyak average of the weights; kept in half precision, it is only used for evaluation."""

    def __init__(self, net, decay):
        self.decay = decay
        self.values = {k: v.detach().clone().half() for k, v in net.named_parameters()}

    @torch.no_grad()
    def update(self, net):
        for k, v in net.named_parameters():
            self.values[k].lerp_(v.to(self.values[k].dtype), 1 - self.decay)


def main():
    torch.manual_seed(1)
    dev = torch.device("cuda")
    net = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5)).to(dev)
    ema = Shadow(net, 0.9995)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda")
    teacher = torch.randn(20, 5)
    for it in range(400):
        x = torch.randn(64, 20)
        y = (x @ teacher).argmax(1)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x.to(dev)), y.to(dev))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        ema.update(net)
    print("loss", loss.item())
    return net, ema


if __name__ == "__main__":
    net, ema = main()
    ema_tensor = torch.cat([v.flatten() for v in ema.values.values()])
