"""Support-ticket tagger with an auxiliary next-token head (chunked linear + cross entropy, no full logits kept)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)

VOCAB, TOPICS, SEQ, DIM = 400, 6, 24, 32
BATCH, STEPS, LM_WEIGHT = 24, 70, 1e-3


class ChunkedLinearCE(torch.autograd.Function):
    """Cross entropy of hidden @ weight.T; gradients are made chunk by chunk in the forward pass."""

    @staticmethod
    def forward(ctx, hidden, weight, target, loss_weight, chunk=256):
        n = target.numel()
        w = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight)
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, n, chunk):
            h, t = hidden[start : start + chunk], target[start : start + chunk]
            logp = F.log_softmax((h @ w.t()).float(), dim=-1)
            total -= logp.gather(1, t[:, None]).sum()
            grad = logp.exp()
            grad[torch.arange(len(t), device=t.device), t] -= 1.0
            grad = (grad * (loss_weight / n)).to(hidden.dtype)
            grad_hidden[start : start + chunk] = grad @ w
            grad_weight += (grad.t() @ h).float()
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total * (loss_weight / n)

    @staticmethod
    def backward(ctx, grad_output):
        grad_hidden, grad_weight = ctx.saved_tensors
        return (grad_hidden.float() * grad_output).to(grad_hidden.dtype), grad_weight * grad_output, None, None, None


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.mix = nn.Linear(2 * DIM, DIM)
        self.lm_weight = nn.Parameter(torch.randn(VOCAB, DIM) * 0.02)
        self.topic = nn.Linear(DIM, TOPICS)

    def forward(self, tokens):
        e = self.embed(tokens)
        past = torch.cumsum(e, 1) / torch.arange(1, tokens.shape[1] + 1, device=tokens.device)[None, :, None]
        h = F.gelu(self.mix(torch.cat([e, past], -1)))
        return h, self.topic(h.mean(1))


# synthetic tickets: a topic picks the vocabulary, the successor of a word is nearly fixed
successor = torch.randperm(VOCAB, device=device)
topic_bias = torch.randn(TOPICS, VOCAB, device=device) * 1.5


def tickets(n):
    topic = torch.randint(0, TOPICS, (n,), device=device)
    probs = F.softmax(topic_bias[topic], -1)
    tokens = torch.multinomial(probs, SEQ + 1, replacement=True)
    for i in range(1, SEQ + 1):
        follow = torch.rand(n, device=device) < 0.7
        tokens[:, i] = torch.where(follow, successor[tokens[:, i - 1]], tokens[:, i])
    return tokens, topic


model = Tagger().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    tokens, topic = tickets(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        h, topic_logits = model(tokens[:, :-1])
        topic_loss = F.cross_entropy(topic_logits, topic)
        lm_loss = ChunkedLinearCE.apply(h.reshape(-1, DIM), model.lm_weight, tokens[:, 1:].reshape(-1), LM_WEIGHT)
        loss = topic_loss + lm_loss
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()

model.eval()
with torch.no_grad():
    tokens, topic = tickets(400)
    h, topic_logits = model(tokens[:, :-1])
    nll = F.cross_entropy((h @ model.lm_weight.t()).flatten(0, 1), tokens[:, 1:].flatten()).item()
    acc = (topic_logits.argmax(-1) == topic).float().mean().item()
print(f"topic accuracy {acc:.3f}")
print(f"metric {nll:.4f}")
