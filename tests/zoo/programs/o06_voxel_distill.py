"""CT organ labels per voxel, learned from a teacher's soft maps. Logits of a whole volume are large, so the loss works in chunks and keeps only the gradients."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE, ORGANS, WIDTH, ACCUM, TEMP = (16, 32, 32), 16, 12, 8, 4.0


class ChunkedLinearKD(torch.autograd.Function):
    """KL(teacher | student) of feats @ weight.T at temperature T, summed and divided by `voxels` (those of all accumulated
    volumes): logits are made, used and dropped chunk by chunk in the forward pass."""

    @staticmethod
    def forward(ctx, feats, weight, teacher, temp, voxels, chunk):
        w = weight.to(feats.dtype)
        grad_f = torch.empty_like(feats)
        grad_w = torch.zeros_like(weight)
        total = torch.zeros((), device=feats.device)
        for s in range(0, feats.shape[0], chunk):
            f = feats[s:s + chunk]
            soft = torch.softmax(teacher[s:s + chunk] / temp, 1)
            logp = torch.log_softmax((f @ w.t()).float() / temp, 1)
            total += F.kl_div(logp, soft, reduction="sum")
            d = ((logp.exp() - soft) / (temp * voxels)).to(feats.dtype)
            grad_f[s:s + chunk] = d @ w
            grad_w += d.t() @ f
        ctx.save_for_backward(grad_f, grad_w)
        return total / voxels

    @staticmethod
    def backward(ctx, g):
        grad_f, grad_w = ctx.saved_tensors
        return grad_f * g.to(grad_f.dtype), grad_w * g, None, None, None, None


class VoxelNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(1, 4, 3, padding=1)
        self.mix = nn.Linear(4 + 3, 32)
        self.feat = nn.Linear(32, WIDTH)
        self.organ = nn.Parameter(torch.randn(ORGANS, WIDTH) * 0.3)
        grid = [torch.linspace(-1, 1, s) for s in SHAPE]
        self.register_buffer("grid", torch.stack(torch.meshgrid(*grid, indexing="ij"), -1).reshape(-1, 3))

    def forward(self, vol):
        h = F.relu(self.stem(vol)).flatten(2).transpose(1, 2)[0]
        h = F.gelu(self.mix(torch.cat([h, 2 * self.grid], 1)))
        return self.feat(h)

    def loss(self, vol, teacher):
        return TEMP ** 2 * ChunkedLinearKD.apply(self(vol), self.organ, teacher, TEMP, ACCUM * len(teacher), 4096)


CENTRES = torch.rand(ORGANS, 3, generator=torch.Generator().manual_seed(0)) * 1.8 - 0.9
DENSITY = torch.rand(ORGANS, generator=torch.Generator().manual_seed(1))


def volume(grid, gen):
    """Organs: cells around fixed centres that move a little from patient to patient, each with its density."""
    c = CENTRES + 0.04 * torch.randn(ORGANS, 3, generator=gen)
    dist = torch.cdist(grid.cpu(), c)
    label = dist.argmin(1)
    vol = DENSITY[label] + 0.05 * torch.randn(len(label), generator=gen)
    return vol.view(1, 1, *SHAPE).to(device), label.to(device), (-12 * dist).to(device)


def dice(pred, label):
    d = [(2 * ((pred == k) & (label == k)).sum() / ((pred == k).sum() + (label == k).sum()).clamp(min=1)).item() for k in range(ORGANS)]
    return sum(d) / len(d)


def train(steps=50):
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(2)
    model = VoxelNet().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1.5e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    scaler = torch.amp.GradScaler(device)
    for step in range(steps):
        opt.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(ACCUM):
            vol, _, teacher = volume(model.grid, gen)
            with torch.autocast(device, dtype=torch.float16):
                loss = model.loss(vol, teacher)
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {total:.4f}")
    vol, label, teacher = volume(model.grid, torch.Generator().manual_seed(99))
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        logits = model(vol).float() @ model.organ.float().t()
    kl = F.kl_div(logits.float().log_softmax(1), teacher.softmax(1), reduction="batchmean").item()
    print(f"kl to the teacher {kl:.4f}  mean dice {dice(logits.argmax(1), label):.4f}")


if __name__ == "__main__":
    train()
