"""Speaker identification with a scaled cosine softmax; class scores are recomputed in chunks in the backward pass."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SPEAKERS, DIM, SCALE, CHUNK = 100, 64, 64.0, 128


def scores(emb, weight, target):
    cos = (F.normalize(emb.float(), dim=1) @ F.normalize(weight.float(), dim=1).t()).float()
    margin = torch.zeros_like(cos).scatter_(1, target[:, None], 0.1)
    return SCALE * (cos - margin)


class ChunkedMarginLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, emb, weight, target):
        norm, nll = [], 0.0
        with torch.autocast(emb.device.type, enabled=False):
            for e, t in zip(emb.split(CHUNK), target.split(CHUNK)):
                s = scores(e, weight, t)
                z = s.logsumexp(1)
                norm.append(z.to(emb.dtype))
                nll = nll + (z - s.gather(1, t[:, None])[:, 0]).sum()
        ctx.save_for_backward(emb, weight, target, torch.cat(norm))
        return nll / len(target)

    @staticmethod
    def backward(ctx, grad):
        emb, weight, target, norm = ctx.saved_tensors
        w = weight.detach().requires_grad_()
        grad_emb, grad_w = [], torch.zeros_like(weight)
        for i in range(0, len(target), CHUNK):
            e = emb[i:i + CHUNK].detach().float().requires_grad_()
            t = target[i:i + CHUNK]
            with torch.enable_grad():
                s = scores(e, w, t)
            p = (s.detach() - norm[i:i + CHUNK, None].float()).exp()
            p[torch.arange(len(t), device=t.device), t] -= 1
            ge, gw = torch.autograd.grad(s, (e, w), p * (grad / len(target)))
            grad_emb.append(ge.to(emb.dtype))
            grad_w += gw
        return torch.cat(grad_emb), grad_w, None


class SpeakerNet(nn.Module):
    def __init__(self, feats=40):
        super().__init__()
        self.frontend = nn.Sequential(nn.Linear(feats, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.embed = nn.Linear(128, DIM)
        self.speakers = nn.Parameter(torch.randn(SPEAKERS, DIM))

    def forward(self, x, target):
        return ChunkedMarginLoss.apply(self.embed(self.frontend(x)), self.speakers, target)


def run(steps=100):
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(9)
    voices = torch.randn(SPEAKERS, 40, generator=gen)
    model = SpeakerNet().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=6e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2048.0)
    for step in range(steps):
        who = torch.randint(0, SPEAKERS, (512,), generator=gen)
        x = voices[who] + 0.08 * torch.randn(512, 40, generator=gen)
        x, who = x.to(device), who.to(device)
        with torch.autocast(device, dtype=torch.float16):
            loss = model(x, who)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.5f}")


run()
