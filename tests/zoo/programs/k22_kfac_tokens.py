# Kronecker-factored preconditioning for a byte-level classifier of log lines, factors collected with hooks.
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class KFAC:
    def __init__(self, model, lr, damping=1e-4, decay=0.9, every=5):
        self.lr, self.damping, self.decay, self.every, self.t = lr, damping, decay, every, 0
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.A, self.G, self.inv, self.buf = {}, {}, {}, {}
        self.inv_scale = 1.0
        for m in self.layers:
            m.register_forward_pre_hook(self.save_input)
            m.register_full_backward_hook(self.save_grad)

    def blend(self, store, m, new):
        store[m] = new if m not in store else self.decay * store[m] + (1 - self.decay) * new

    def save_input(self, m, inp):
        if torch.is_grad_enabled():
            a = inp[0].detach().flatten(0, -2).float()
            a = torch.cat([a, torch.ones_like(a[:, :1])], 1)
            self.blend(self.A, m, a.t() @ a / len(a))

    def save_grad(self, m, gin, gout):
        g = gout[0].flatten(0, -2) * (self.inv_scale * gout[0].shape[:-1].numel())
        self.blend(self.G, m, g.float().t() @ g.float() / len(g))

    @torch.no_grad()
    def step(self):
        for m in self.layers:
            if self.t % self.every == 0:
                eye = lambda x: torch.eye(len(x), device=x.device)
                d = self.damping ** 0.5
                self.inv[m] = (torch.linalg.inv(self.A[m] + d * eye(self.A[m])),
                               torch.linalg.inv(self.G[m] + d * eye(self.G[m])))
            a_inv, g_inv = self.inv[m]
            grad = torch.cat([m.weight.grad, m.bias.grad[:, None]], 1)
            nat = g_inv @ grad @ a_inv
            nat *= min(1.0, 2.0 / (nat.norm().item() + 1e-12))
            self.buf[m] = nat if m not in self.buf else 0.8 * self.buf[m] + nat
            m.weight -= self.lr * self.buf[m][:, :-1]
            m.bias -= self.lr * self.buf[m][:, -1]
        self.t += 1


class Tagger(nn.Module):
    def __init__(self, vocab=48, width=32, tags=6):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.mix = nn.Linear(3 * width, 48)
        self.mid = nn.Linear(48, 48)
        self.tag = nn.Linear(48, tags)

    def forward(self, tok):
        e = self.emb(tok)
        e = torch.cat([e, e.roll(1, 1), e.roll(-1, 1)], -1)
        return self.tag(torch.tanh(self.mid(torch.tanh(self.mix(e)))))


def lines(n, length, gen):
    tok = torch.randint(0, 48, (n, length), generator=gen)
    tag = (tok // 8 + (tok.roll(1, 1) % 3) * (tok.roll(-1, 1) % 2)) % 6
    return tok.to(device), tag.to(device)


torch.manual_seed(9)
gen = torch.Generator().manual_seed(10)
model = Tagger().to(device)
kfac = KFAC(model, lr=0.05)
emb_opt = torch.optim.Adam(model.emb.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=10000)
for step in range(100):
    tok, tag = lines(32, 64, gen)
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(model(tok).flatten(0, 1).float(), tag.flatten())
    kfac.inv_scale = 1.0 / scaler.get_scale()
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad.mul_(kfac.inv_scale)
    kfac.step()
    emb_opt.step()
    model.zero_grad()
    if step % 20 == 0:
        print(f"step {step:3d} loss {loss.item():.4f}")
with torch.no_grad():
    tok, tag = lines(256, 64, gen)
    out = model(tok)
    final = F.cross_entropy(out.flatten(0, 1), tag.flatten()).item()
    acc = (out.argmax(-1) == tag).float().mean().item()
print(f"test loss {final:.4f} accuracy {acc:.3f}")
