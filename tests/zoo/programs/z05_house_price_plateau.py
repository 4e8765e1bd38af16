import torch
import torch.nn as nn

# Tabular regression: price (in 10k) from 30 listing attributes. Whole table lives on the GPU in fp16.


class Net(nn.Module):
    def __init__(self, d_in, d=64):
        super().__init__()
        self.inp = nn.Linear(d_in, d)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(2)])
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.head(h)[:, 0]


class Trainer:
    def __init__(self, model, lr=1e-3, device="cpu"):
        self.model = model.to(device)
        self.device = device
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, factor=0.2, patience=0)
        self.scaler = torch.amp.GradScaler(device)

    def fit_epoch(self, X, y, bs=1024):
        perm = torch.randperm(len(X))
        epoch_loss = 0.0
        for i in range(0, len(X), bs):
            idx = perm[i:i + bs].to(self.device)
            with torch.autocast(self.device, dtype=torch.float16):
                pred = self.model(X[idx])
                loss = (pred - y[idx]).abs().mean()
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            epoch_loss = epoch_loss + loss.detach() * len(idx)
        return epoch_loss / len(X)

    def fit(self, X, y, epochs):
        for e in range(epochs):
            tr = self.fit_epoch(X, y)
            self.sched.step(tr.item())
            print(f"epoch {e}: train MAE {tr.item():.4f}  lr {self.opt.param_groups[0]['lr']:.2e}")

    @torch.no_grad()
    def mae(self, X, y):
        return (self.model.float()(X.float()) - y.float()).abs().mean().item()


def make_table(n, seed):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 30, generator=g)
    base = torch.linspace(-1, 1, 30)
    y = 32 + 6 * (X @ base) + 3 * (X[:, 0] * X[:, 1]) + 4 * X[:, 2].clamp(min=0)
    return X, y + 0.5 * torch.randn(n, generator=g)


def run():
    torch.manual_seed(5)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y = make_table(16384, 0)
    X, y = X.to(device, torch.float16), y.to(device, torch.float16)
    tr = Trainer(Net(30), lr=2e-3, device=device)
    tr.fit(X, y, epochs=15)
    Xv, yv = make_table(2000, 9)
    print("valid MAE", round(tr.mae(Xv.to(device), yv.to(device)), 4))


if __name__ == "__main__":
    run()
