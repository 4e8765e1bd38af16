"""Multi-task recommender whose task weights follow the gradient norms at the shared layer."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Impressions:
    """Impressions with a click label and the smoothed purchase rate of the shown offer."""

    def __init__(self, dim=24):
        self.gen = torch.Generator().manual_seed(11)
        self.w_click = torch.randn(dim, generator=self.gen)
        self.w_rate = torch.randn(dim, generator=self.gen) / dim**0.5
        self.dim = dim

    def batch(self, size):
        x = torch.randn(size, self.dim, generator=self.gen)
        click = torch.bernoulli(torch.sigmoid(x @ self.w_click), generator=self.gen)
        rate = 0.002 * torch.sigmoid(2 * x @ self.w_rate)
        return x.to(device), click.to(device), rate.to(device)


class SharedBottom(nn.Module):
    def __init__(self, dim=24, width=64):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.shared = nn.Linear(width, width)
        self.click = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))
        self.rate = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        h = F.relu(self.shared(F.relu(self.inp(x))))
        return self.click(h).squeeze(-1), 0.01 * torch.sigmoid(self.rate(h).squeeze(-1))


class NormBalancer:
    """Weights every task so that its gradient is as long as that of the first, averaged over steps."""

    def __init__(self, tasks, momentum=0.8):
        self.weights = torch.ones(tasks, device=device)
        self.momentum = momentum

    def update(self, losses, parameter):
        norms = []
        for loss in losses:
            (grad,) = torch.autograd.grad(loss, parameter, retain_graph=True)
            norms.append(grad.detach().norm())
        target = norms[0] / (torch.stack(norms) + 1e-12)
        self.weights = self.momentum * self.weights + (1 - self.momentum) * target
        return self.weights


def main():
    torch.manual_seed(0)
    data = Impressions()
    model = SharedBottom().to(device)
    balancer = NormBalancer(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(60):
        x, click, rate = data.batch(2048)
        with torch.autocast("cuda", dtype=torch.float16):
            click_logit, rate_hat = model(x)
            losses = (
                F.binary_cross_entropy_with_logits(click_logit, click),
                F.mse_loss(rate_hat, rate),
            )
        weights = balancer.update(losses, model.shared.weight)
        loss = sum(w * l for w, l in zip(weights, losses))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 15 == 14:
            print(step + 1, [f"{l.item():.3e}" for l in losses], [f"{w:.3e}" for w in weights.tolist()])
    with torch.no_grad():
        x, click, rate = data.batch(8192)
        click_logit, rate_hat = model(x)
        accuracy = ((click_logit > 0) == click.bool()).float().mean().item()
        error = ((rate_hat - rate).pow(2).mean() / rate.var()).item()
    print(f"click accuracy {accuracy:.3f}, rate error {error:.3f}")


if __name__ == "__main__":
    main()
