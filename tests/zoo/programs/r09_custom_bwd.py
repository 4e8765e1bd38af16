import torch
import torch.nn as nn
import torch.nn.functional as F


class FusedRMS(torch.autograd.Function):
    """Forward in FP32; saves fp16 copies to spare memory."""

    @staticmethod
    def forward(ctx, x, w, eps):
        xf = x.float()
        inv = torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x.half(), inv.half(), w)
        return (xf * inv * w).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, inv, w = ctx.saved_tensors
        gw = (g * (x * inv)).float().sum(tuple(range(g.dim() - 1)))
        gh = (g * w).half()
        dot = (gh * x).mean(-1, keepdim=True)
        gx = gh * inv - x * (inv * inv * inv) * dot
        return gx.to(g.dtype), gw, None


class RMS(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return FusedRMS.apply(x, self.w, 1e-6)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = RMS(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + 400 * self.down(F.silu(self.up(self.norm(x))))


class LM(nn.Module):
    def __init__(self, v=40, d=48):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        nn.init.normal_(self.emb.weight, std=600.0)
        self.mix = nn.Conv1d(d, d, 3)
        self.blocks = nn.Sequential(Block(d), Block(d))
        self.norm, self.head = RMS(d), nn.Linear(d, v)

    def forward(self, t):
        h = self.emb(t)
        h = h + F.pad(self.mix(h.transpose(1, 2)), (2, 0)).transpose(1, 2)
        return self.head(self.norm(self.blocks(h)))


def get_batch():
    t = torch.randint(0, 40, (8, 1)).repeat(1, 25) + torch.arange(25) * torch.randint(1, 4, (8, 1))
    return t[:, :-1] % 40, t[:, 1:] % 40


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LM().to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=512.0)
    for step in range(60):
        x, y = get_batch()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1), y.to(device).flatten())
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print("loss", loss.item())
