"""Contrastive pretraining of small scenes with a momentum encoder and a queue of keys; nearest-neighbour readout."""
import argparse
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_scenes(n, gen, kinds=10, size=20):
    """A kind is a texture direction and frequency; contrast, phase and noise vary."""
    kind = torch.randint(0, kinds, (n,), generator=gen)
    yy, xx = torch.meshgrid(torch.arange(size) / size, torch.arange(size) / size, indexing="ij")
    angle = (kind % 5) * 0.62 + 0.10 * torch.randn(n, generator=gen)
    freq = 2.5 + 2.0 * (kind // 5) + 0.25 * torch.randn(n, generator=gen)
    wave = torch.cos(angle)[:, None, None] * xx + torch.sin(angle)[:, None, None] * yy
    phase = 6.28 * torch.rand(n, 1, 1, generator=gen)
    image = torch.sin(6.28 * freq[:, None, None] * wave + phase) * (0.6 + 0.6 * torch.rand(n, 1, 1, generator=gen))
    image = image + 1.0 * torch.randn(n, size, size, generator=gen)
    return image[:, None].to(device), kind.to(device)


def augment(x):
    n = len(x)
    dy, dx = torch.randint(0, 5, (2,)).tolist()
    x = F.pad(x, (2, 2, 2, 2), mode="reflect")[:, :, dy:dy + 20, dx:dx + 20]
    gain = 0.7 + 0.6 * torch.rand(n, 1, 1, 1, device=x.device)
    return x * gain + 0.3 * torch.randn_like(x)


class SceneEncoder(nn.Module):
    def __init__(self, width=16, dim=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.BatchNorm2d(4 * width), nn.ReLU())
        self.project = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, dim))

    def features(self, x):
        return self.conv(x).amax((2, 3))

    def forward(self, x):
        return F.normalize(self.project(self.features(x)), dim=1)


class KeyQueue(nn.Module):
    """Ring of the latest keys, stored compactly."""

    def __init__(self, size, dim, dtype):
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1).to(dtype))
        self.head = 0

    @torch.no_grad()
    def push(self, keys):
        i = (self.head + torch.arange(len(keys), device=keys.device)) % len(self.keys)
        self.keys[i] = keys.to(self.keys.dtype)
        self.head = (self.head + len(keys)) % len(self.keys)


@torch.no_grad()
def follow(slow, fast, decay):
    for a, b in zip(slow.parameters(), fast.parameters()):
        a.lerp_(b, 1 - decay)
    for a, b in zip(slow.buffers(), fast.buffers()):
        a.copy_(b)


@torch.no_grad()
def neighbours(encoder, train, held, dtype):
    encoder.eval()
    with torch.autocast(device, dtype=dtype):
        a = F.normalize(encoder.features(train[0]).float(), dim=1)
        b = F.normalize(encoder.features(held[0]).float(), dim=1)
    vote = F.one_hot(train[1], 10).float()[(b @ a.t()).topk(15, dim=1).indices].sum(1)
    return (vote.argmax(1) == held[1]).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.1)
    args = parser.parse_args()
    dtype = torch.float16
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(23)
    pool, few, held = make_scenes(8000, gen), make_scenes(1000, gen), make_scenes(2000, gen)

    encoder = SceneEncoder().to(device)
    slow = copy.deepcopy(encoder).requires_grad_(False)
    bank = KeyQueue(2048, 48, dtype).to(device)
    opt = torch.optim.AdamW(encoder.parameters(), lr=2e-3, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device)
    for step in range(args.steps):
        x = pool[0][torch.randint(0, len(pool[0]), (args.batch,), device=device)]
        with torch.autocast(device, dtype=dtype):
            q = encoder(augment(x))
            with torch.no_grad():
                k = slow(augment(x)).to(dtype)
            positive = (q.to(dtype) * k).sum(1, keepdim=True).to(dtype)
            logits = torch.cat([positive, q @ bank.keys.t()], 1) / args.temperature
            loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=device))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        follow(slow, encoder, 0.98)
        bank.push(k)
        if step % 40 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")
    score = neighbours(encoder, few, held, dtype)
    print(f"nearest neighbours {score:.4f}")
    return {"knn": score, "loss": loss.item(), "scale": scaler.get_scale(), "updates": int(opt.state[encoder.conv[0].weight]["step"])}


if __name__ == "__main__":
    main()
