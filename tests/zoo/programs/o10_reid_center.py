"""Person re-identification baseline: ID loss + centre loss, one optimizer for the network and one for the centres."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
IDS, DIM, H, W = 20, 32, 24, 12
CENTER_WEIGHT = 5e-3


class CenterLoss(nn.Module):
    def __init__(self, classes, dim):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, dim))

    def forward(self, x, labels):
        x = x.float()
        d = x.pow(2).sum(1, keepdim=True) + self.centers.pow(2).sum(1)[None]
        with torch.autocast(device, enabled=False):
            d = d - 2 * x @ self.centers.t()
        mask = F.one_hot(labels, self.centers.shape[0]).bool()
        return d[mask].clamp(1e-12, 1e12).mean()


class ReIDNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, DIM, 3, 2, 1)
        self.bottleneck = nn.BatchNorm1d(DIM)
        self.bottleneck.bias.requires_grad_(False)
        self.classifier = nn.Linear(DIM, IDS, bias=False)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        top, bottom = x[:, :, :6].mean((2, 3)), x[:, :, 6:].amax((2, 3))
        feat = top + bottom
        bn = self.bottleneck(feat)
        return (self.classifier(bn), feat) if self.training else bn


class Gallery:
    """A person: colours of shirt and trousers, stripes or not; the camera changes light and adds noise."""

    def __init__(self, seed):
        people = torch.Generator().manual_seed(100)
        self.shirt, self.legs = torch.rand(IDS, 3, generator=people), torch.rand(IDS, 3, generator=people)
        self.stripe = torch.rand(IDS, generator=people).round()
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n):
        g = self.gen
        who = torch.randint(0, IDS, (n,), generator=g)
        img = torch.empty(n, 3, H, W)
        img[:, :, :12], img[:, :, 12:] = self.shirt[who][:, :, None, None], self.legs[who][:, :, None, None]
        rows = (torch.arange(H) % 4 < 2).float() * 0.4
        img[:, :, :12] += (self.stripe[who][:, None] * rows[None])[:, None, :12, None]
        img = img * (0.9 + 0.2 * torch.rand(n, 1, 1, 1, generator=g)) + 0.15 * torch.randn(n, 3, H, W, generator=g)
        return img.to(device), who.to(device)


def rank1(model, n=200):
    model.eval()
    gallery = Gallery(5)
    (a, ia), (b, ib) = gallery.batch(n), gallery.batch(n)
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        fa, fb = F.normalize(model(a).float()), F.normalize(model(b).float())
    hit = (ib[(fa.float() @ fb.float().t()).argmax(1)] == ia).float().mean().item()
    model.train()
    return hit


def do_train(steps=120, batch=32):
    torch.manual_seed(0)
    data = Gallery(1)
    model, center = ReIDNet().to(device), CenterLoss(IDS, DIM).to(device)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3, weight_decay=5e-4)
    optimizer_center = torch.optim.SGD(center.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler(device)
    for step in range(steps):
        img, who = data.batch(batch)
        optimizer.zero_grad()
        optimizer_center.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            score, feat = model(img)
            id_loss = F.cross_entropy(score, who, label_smoothing=0.1)
            c_loss = center(feat, who)
            loss = id_loss + CENTER_WEIGHT * c_loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        for p in center.parameters():
            p.grad.data *= (1.0 / CENTER_WEIGHT)
        scaler.step(optimizer_center)
        scaler.update()
        if step % 20 == 0 or step == steps - 1:
            acc = (score.argmax(1) == who).float().mean().item()
            print(f"step {step:3d}  id {id_loss.item():.4f}  center {c_loss.item():.3f}  acc {acc:.2f}  scale {scaler.get_scale():.3g}")
    print(f"rank-1 {rank1(model):.3f}  center loss {c_loss.item():.3f}")


if __name__ == "__main__":
    do_train()
