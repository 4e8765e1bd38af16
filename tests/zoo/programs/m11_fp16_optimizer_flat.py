"""fp16 training in the style of fairseq: flat fp32 master buffer, dynamic loss scaler, clip after unscaling."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicLossScaler:
    def __init__(self, init_scale=2.0 ** 22, scale_factor=2.0, scale_window=64, min_scale=1e-2):
        self.loss_scale = init_scale
        self.scale_factor, self.scale_window, self.min_scale = scale_factor, scale_window, min_scale
        self._iter, self._last_overflow = 0, -1

    def check_overflow(self, grad_norm):
        if grad_norm == float("inf") or grad_norm != grad_norm:
            self.loss_scale = max(self.loss_scale / self.scale_factor, self.min_scale)
            self._last_overflow = self._iter
            self._iter += 1
            raise OverflowError("gradient overflow, new loss scale: %g" % self.loss_scale)

    def update(self):
        if (self._iter - self._last_overflow) % self.scale_window == 0:
            self.loss_scale *= self.scale_factor
        self._iter += 1


class FP16Optimizer:
    def __init__(self, params, lr):
        self.params = list(params)
        self.flat = nn.Parameter(torch.cat([p.detach().float().reshape(-1) for p in self.params]))
        self.flat.grad = torch.zeros_like(self.flat)
        self.opt = torch.optim.Adam([self.flat], lr=lr, betas=(0.9, 0.98))
        self.scaler = DynamicLossScaler()

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def backward(self, loss):
        (loss * self.scaler.loss_scale).backward()

    def step(self, clip_norm):
        self.flat.grad.copy_(torch.cat([p.grad.float().reshape(-1) for p in self.params]))
        self.flat.grad.mul_(1.0 / self.scaler.loss_scale)
        norm = self.flat.grad.norm().item()
        self.scaler.check_overflow(norm)
        if norm > clip_norm:
            self.flat.grad.mul_(clip_norm / (norm + 1e-6))
        self.opt.step()
        off = 0
        with torch.no_grad():
            for p in self.params:
                p.copy_(self.flat[off:off + p.numel()].view_as(p))
                off += p.numel()
        self.scaler.update()
        return norm


class Tagger(nn.Module):
    """predicts whether the brackets seen so far are balanced"""

    def __init__(self, vocab=6, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRUCell(d, d)
        self.out = nn.Linear(d, 5)

    def forward(self, tok):
        h = torch.zeros(tok.shape[0], self.rnn.hidden_size, dtype=self.out.weight.dtype, device=tok.device)
        outs = []
        for t in range(tok.shape[1]):
            h = self.rnn(self.emb(tok[:, t]), h)
            outs.append(self.out(h))
        return torch.stack(outs, 1)


def get_batch(n, length, device):
    tok = torch.randint(0, 6, (n, length))
    delta = (tok == 0).long() - (tok == 1).long()
    depth, cur = [], torch.zeros(n, dtype=torch.long)
    for t in range(length):
        cur = (cur + delta[:, t]).clamp(0, 4)
        depth.append(cur)
    return tok.to(device), torch.stack(depth, 1).to(device)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=160)
    args = ap.parse_args()
    torch.manual_seed(29)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Tagger().to(device).half()
    optimizer = FP16Optimizer(model.parameters(), lr=5e-3)
    for step in range(args.updates):
        tok, y = get_batch(32, 10, device)
        optimizer.zero_grad()
        logits = model(tok)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        optimizer.backward(loss)
        try:
            optimizer.step(1.0)
        except OverflowError as e:
            print("NOTE:", e)
        if step % 40 == 39:
            acc = (logits.argmax(-1) == y).float().mean().item()
            print(f"update {step + 1} loss {loss.item():.4f} acc {acc:.3f} scale {optimizer.scaler.loss_scale:g}")
