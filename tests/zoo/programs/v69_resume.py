import copy

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
LOSS_SCALE = 1024.0


class ScaledAdam(torch.optim.Optimizer):
    """Adam for low precision weights, with a static loss scale."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, loss_scale=1.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.loss_scale = loss_scale

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
                grad = p.grad.float() / self.loss_scale
                state["step"] += 1
                state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                mean = state["exp_avg"].float() / (1 - beta1 ** state["step"])
                var = state["exp_avg_sq"].float() / (1 - beta2 ** state["step"])
                update = mean / (var.sqrt() + group["eps"])
                p.copy_(p.float() - group["lr"] * update)


class Net(nn.Module):
    def __init__(self, inputs=24, hidden=64, outputs=8):
        super().__init__()
        self.inp = nn.Linear(inputs, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        h = h + torch.tanh(self.mid(h))
        return self.out(h)


class Trainer:
    def __init__(self, lr=2e-3):
        self.model = Net().to(device).half()
        self.optimizer = ScaledAdam(self.model.parameters(), lr=lr, loss_scale=LOSS_SCALE)
        self.iteration = 0

    def snapshot(self):
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "iteration": self.iteration,
            }
        )

    def resume(self, saved):
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.iteration = saved["iteration"]

    def loss(self, x, y):
        prediction = self.model(x.half())
        return nn.functional.mse_loss(prediction.float(), y)

    def fit(self, batches):
        for x, y in batches:
            loss = self.loss(x, y)
            self.optimizer.zero_grad()
            (loss * LOSS_SCALE).backward()
            self.optimizer.step()
            self.iteration += 1
        return loss.item()


def make_batches(count, size=64):
    mixing = torch.randn(24, 8) / 24**0.5
    for _ in range(count):
        x = torch.randn(size, 24)
        y = torch.sin(x @ mixing) * 0.1
        yield x.to(device), y.to(device)


def main():
    torch.manual_seed(11)
    batches = list(make_batches(80))
    held_x, held_y = batches.pop()

    first = Trainer()
    print(f"first job: loss {first.fit(batches[:40]):.6f}")
    saved = first.snapshot()

    second = Trainer()
    second.resume(saved)
    print(f"resumed at iteration {second.iteration}")
    print(f"second job: loss {second.fit(batches[40:]):.6f}")
    with torch.no_grad():
        print(f"held out: loss {second.loss(held_x, held_y).item():.6f}")


if __name__ == "__main__":
    main()
