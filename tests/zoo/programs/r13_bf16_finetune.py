"""Fine-tune a bf16 checkpoint of a small GPT on CPU."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.qkv, self.proj, self.h = nn.Linear(d, 3 * d), nn.Linear(d, d), h

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.h, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.a, self.n2 = nn.LayerNorm(d), Attn(d, h), nn.LayerNorm(d)
        self.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.a(self.n1(x))
        return x + self.m(self.n2(x))


class GPT(nn.Module):
    def __init__(self, v=64, d=64, n=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(v, d), nn.Embedding(32, d)
        self.layers = nn.ModuleList(Layer(d, 4) for _ in range(n))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, t):
        x = self.emb(t) + self.pos.weight[: t.shape[1]]
        for l in self.layers:
            x = l(x)
        return self.head(self.norm(x))


def batches(n):
    for _ in range(n):
        s = torch.randint(0, 64, (16, 1))
        yield (s + 3 * torch.arange(33)) % 64


def main():
    torch.manual_seed(0)
    model = GPT().to(torch.bfloat16)
    before = {k: v.detach().clone() for k, v in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-6, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    for i, t in enumerate(batches(60)):
        logits = model(t[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), t[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sched.step()
        if i % 20 == 0 or i == 59:
            print(i, loss.item())
    n = sum((model.get_parameter(k) != v).sum().item() for k, v in before.items())
    print("changed", n / sum(v.numel() for v in before.values()))


main()
