"""LM fine-tuning loop whose scaler is calibrated first: backward passes from 2^30 downwards, their inf gradients are thrown away."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class CalibratedScaler(torch.amp.GradScaler):
    def __init__(self, device, start=2.0 ** 30):
        super().__init__(device, init_scale=start, growth_interval=10 ** 6)

    def calibrate(self, model, loss_fn, margin=8.0):
        while self.is_enabled():
            model.zero_grad()
            self.scale(loss_fn()).backward()
            finite = all(torch.isfinite(p.grad).all() for p in model.parameters())
            self._scale.mul_(1.0 / margin if finite else 0.5)
            if finite:
                break
        model.zero_grad()
        return self.get_scale()


class GRULM(nn.Module):
    def __init__(self, vocab=20, d=32):
        super().__init__()
        self.emb, self.i2h, self.h2h = nn.Embedding(vocab, d), nn.Linear(d, 2 * d), nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        x, outs = self.i2h(self.emb(ids)), []
        h = torch.zeros(ids.size(0), self.emb.embedding_dim, device=ids.device)
        for t in range(ids.size(1)):
            a, b = (x[:, t] + self.h2h(h)).chunk(2, -1)
            g = torch.sigmoid(a)
            h = g * h + (1 - g) * torch.tanh(b)
            outs.append(h)
        return self.out(torch.stack(outs, 1))


def get_batch(n=48, t=13):
    a = torch.randint(0, 20, (n, 1))
    sgn = torch.randint(0, 2, (n, 1)) * 2 - 1
    ids = (a + sgn * torch.arange(t) * 3) % 20
    return ids[:, :-1], ids[:, 1:]


def main():
    torch.manual_seed(50)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GRULM().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    probe = get_batch()

    def loss_fn(batch=None):
        x, y = (t.to(device) for t in (batch or probe))
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    scaler = CalibratedScaler(device)
    print("calibrated scale", scaler.calibrate(model, loss_fn))
    for step in range(120):
        loss = loss_fn(get_batch())
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 30 == 29:
            print(f"step {step + 1} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
