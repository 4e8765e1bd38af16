"""RL fine-tuning: log-probabilities in bf16, ratio = exp(new - old) - 1 of nearly equal numbers around -8."""

import torch
from torch import nn


class LogProb(nn.Module):
    def forward(self, logits, ids):
        return torch.log_softmax(logits.float(), -1).gather(-1, ids[..., None])[..., 0].to(logits.dtype)


class Policy(nn.Module):
    def __init__(self, v=64, d=24):
        super().__init__()
        self.emb, self.ff, self.head, self.logprob = (
            nn.Embedding(v, d),
            nn.Sequential(nn.Linear(d, d), nn.GELU()),
            nn.Linear(d, v),
            LogProb(),
        )

    def forward(self, ids):
        return self.logprob(self.head(self.ff(self.emb(ids))), ids.roll(-1, -1))


def model():
    torch.manual_seed(0)
    m = Policy()
    with torch.no_grad():
        m.head.weight.mul_(4)
    return m


def batch():
    torch.manual_seed(1)
    ids = torch.randint(0, 64, (6, 16))
    with torch.no_grad():
        old = model()(ids).float()
    return ids, old + 0.01 * torch.randn_like(old)


def loss(m, b):
    r = m(b[0]).float() - b[1]
    return ((r.exp() - 1) - r).mean()


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["logprob", "head", ""],
    "op": "_to_copy,sub,addmm,mm",
    "fp32_fix": [],
    "scaler": "none",
    "source": "huggingface/trl#2175 logprobs bf16 mismatch; volcengine/verl",
}
