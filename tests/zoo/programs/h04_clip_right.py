import torch
import torch.nn as nn


class Trainer:
    def __init__(self, model, device, clip=1.0):
        self.model, self.device, self.clip = model.to(device), device, clip
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.cuda.amp.GradScaler()

    def step(self, x, y):
        self.opt.zero_grad()
        with torch.cuda.amp.autocast():
            loss = nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item(), norm.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trainer = Trainer(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)), device, 0.05)
    proto = torch.randn(10, 1, 8, 8)
    for i in range(50):
        y = torch.randint(0, 10, (32,))
        print(*trainer.step(proto[y] + 0.3 * torch.randn(32, 1, 8, 8), y)) if i % 10 == 0 else trainer.step(proto[y], y)
