"""Large-batch terrain classifier with LARS (half weights, FP32 masters, static loss scale)."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
LOSS_SCALE = 4096.0


class LARS(torch.optim.Optimizer):
    """Layer-wise rates; as each gradient is divided by its norm, the loss scale cancels for weights."""

    def __init__(self, params, lr=1.0, momentum=0.9, eta=0.02, grad_scale=1.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, eta=eta, grad_scale=grad_scale))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["master"] = p.detach().float().clone()
                    state["velocity"] = torch.zeros_like(state["master"])
                grad = p.grad
                if p.ndim > 1:
                    weight_norm = state["master"].norm()
                    grad_norm = grad.square().sum().sqrt()
                    rate = group["eta"] * weight_norm / (grad_norm + 1e-6)
                else:
                    rate = 0.05 / group["grad_scale"]
                update = grad.float() * rate
                state["velocity"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
                state["master"].sub_(state["velocity"])
                p.copy_(state["master"])


def terrain(n, protos, gen):
    label = torch.randint(0, len(protos), (n,), generator=gen)
    tiles = protos[label] + 1.6 * torch.randn(n, protos.shape[1], generator=gen)
    flip = torch.rand(n, 1, generator=gen) < 0.5
    return torch.where(flip, -tiles, tiles), label


class TileNet(nn.Module):
    def __init__(self, d, classes):
        super().__init__()
        self.embed = nn.Linear(d, 128)
        self.block = nn.Linear(128, 128)
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        x = torch.relu(self.embed(x))
        x = torch.relu(self.block(x))
        return self.head(x)


def main():
    torch.manual_seed(21)
    gen = torch.Generator()
    gen.manual_seed(4)
    protos = 0.6 * torch.randn(6, 48, generator=gen)
    train_x, train_y = terrain(8192, protos, gen)
    test_x, test_y = terrain(2048, protos, gen)

    model = TileNet(48, 6).to(device).half()
    optimizer = LARS(model.parameters(), lr=1.0, grad_scale=LOSS_SCALE)
    for step in range(200):
        idx = torch.randint(0, len(train_x), (1024,))
        xb, yb = train_x[idx].to(device).half(), train_y[idx].to(device)
        logits = model(xb)
        loss = nn.functional.cross_entropy(logits.float(), yb)
        optimizer.zero_grad()
        (loss * LOSS_SCALE).backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    with torch.no_grad():
        acc = (model(test_x.to(device).half()).argmax(1).cpu() == test_y).float().mean()
    print(f"test accuracy {acc.item():.4f}")


main()
