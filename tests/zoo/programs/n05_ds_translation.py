"""Toy sequence transduction (reverse + shift) with an engine in the DeepSpeed manner."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "train_batch_size": 64,
    "steps": 100,
    "optimizer": {"lr": 2e-3, "betas": (0.9, 0.98)},
    "gradient_clipping": 1.0,
    "fp16": {"initial_scale_power": 32, "loss_scale_window": 1000, "hysteresis": 3, "min_loss_scale": 1},
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class DynamicLossScaler:
    def __init__(self, initial_scale_power, loss_scale_window, hysteresis, min_loss_scale):
        self.cur_scale = 2.0 ** initial_scale_power
        self.window = loss_scale_window
        self.delayed_shift = self.cur_hysteresis = hysteresis
        self.min_scale = min_loss_scale
        self.cur_iter, self.last_overflow_iter = 0, -1

    def update_scale(self, overflow):
        if overflow:
            if self.delayed_shift == 1 or self.cur_hysteresis == 1:
                self.cur_scale = max(self.cur_scale / 2, self.min_scale)
                self.cur_hysteresis = self.delayed_shift
            else:
                self.cur_hysteresis -= 1
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.window == 0:
            self.cur_scale *= 2
        self.cur_iter += 1


class Engine:
    def __init__(self, model, config):
        self.module = model.to(DEVICE)
        self.clip = config["gradient_clipping"]
        self.optimizer = torch.optim.Adam(model.parameters(), **config["optimizer"])
        self.scaler = DynamicLossScaler(**config["fp16"])
        self.skipped_steps = 0

    def __call__(self, *args):
        with torch.autocast(DEVICE, dtype=torch.float16):
            return self.module(*args)

    def backward(self, loss):
        (loss.float() * self.scaler.cur_scale).backward()

    def step(self):
        params = [p for p in self.module.parameters() if p.grad is not None]
        overflow = any(not torch.isfinite(p.grad).all() for p in params)
        if overflow:
            self.skipped_steps += 1
        else:
            for p in params:
                p.grad.mul_(1.0 / self.scaler.cur_scale)
            nn.utils.clip_grad_norm_(params, self.clip)
            self.optimizer.step()
        self.scaler.update_scale(overflow)
        self.optimizer.zero_grad()


class Transducer(nn.Module):
    def __init__(self, vocab=16, length=10, dim=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.5 * torch.randn(length, dim))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mix = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
        self.out = nn.Linear(dim, vocab)

    def forward(self, s):
        x = self.tok(s) + self.pos
        q, k, v = self.qkv(x).chunk(3, -1)
        att = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.mix(att @ v)
        return self.out(x + self.ff(self.norm(x)))


def main():
    torch.manual_seed(13)
    engine = Engine(Transducer(), CONFIG)
    gen = torch.Generator().manual_seed(6)
    for it in range(CONFIG["steps"]):
        src = torch.randint(0, 16, (CONFIG["train_batch_size"], 10), generator=gen).to(DEVICE)
        tgt = (src.flip(1) + 3) % 16
        loss = F.cross_entropy(engine(src).flatten(0, 1), tgt.flatten())
        engine.backward(loss)
        engine.step()
        if it % 20 == 0 or it == CONFIG["steps"] - 1:
            print(f"iter {it} loss {loss.item():.4f} loss_scale 2^{torch.log2(torch.tensor(engine.scaler.cur_scale)).item():.0f}")
    src = torch.randint(0, 16, (500, 10), generator=gen).to(DEVICE)
    with torch.no_grad():
        acc = (engine(src).argmax(-1) == (src.flip(1) + 3) % 16).float().mean()
    print(f"token accuracy {acc.item():.3f}")


if __name__ == "__main__":
    main()
