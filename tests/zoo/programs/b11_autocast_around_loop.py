import torch
from torch import nn


def fit(net, data, device, epochs=4):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        for epoch in range(epochs):
            total = 0.0
            for x, y in data:
                loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item()
            print(epoch, total / len(data))


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
w = torch.randn(16, 4)
data = []
for _ in range(25):
    x = torch.randn(64, 16)
    data.append((x, (x @ w).argmax(1)))
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
fit(model, data, device)
