"""Split learning: two clinics keep the frames and the first layers, a server thread holds the rest of the network."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
POINTS, ROUNDS, BATCH = 64, 300, 32


def echoes(n, seed):
    """Wall motion along a scan line; the target is the mean wall thickness in metres."""
    made = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, POINTS)
    thickness = 0.006 + 0.008 * torch.rand(n, 1, generator=made)
    rate = 4 + 4 * torch.rand(n, 1, generator=made)
    phase = 6.28 * torch.rand(n, 1, generator=made)
    beat = 0.3 * torch.sin(6.28 * rate * t + phase) + 0.3 * torch.sin(2 * t + phase)
    gap = 60 * thickness * (1 + 0.1 * torch.sin(9 * t + phase))
    depth = torch.rand(n, POINTS, generator=made) * 2 - 1
    inner = torch.tanh(6 * (depth - beat + gap / 2))
    outer = torch.tanh(6 * (depth - beat - gap / 2))
    frames = torch.stack([inner, outer], -1) + 0.05 * torch.randn(n, POINTS, 2, generator=made)
    return frames.to(device), thickness.to(device)


class Stem(nn.Module):
    def __init__(self, wide=24):
        super().__init__()
        self.taps, self.mix = nn.Linear(2 * 9, 2 * wide), nn.Linear(2 * wide, wide)

    def forward(self, frames):
        windows = F.pad(frames, (0, 0, 4, 4)).unfold(1, 9, 1).flatten(2)
        return F.relu(self.mix(F.relu(self.taps(windows))))


class Head(nn.Module):
    def __init__(self, wide=24):
        super().__init__()
        self.pooled, self.out = nn.Linear(wide, 24), nn.Linear(24, 1)

    def forward(self, cut):
        return 0.01 * self.out(F.relu(self.pooled(cut.mean(1))))


stem, head = Stem().to(device), Head().to(device)
to_server, to_client = queue.Queue(), [queue.Queue(), queue.Queue()]


def server():
    optimizer = torch.optim.Adam(head.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)
    for i in range(2 * ROUNDS):
        client, cut, target = to_server.get()
        cut.requires_grad_()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(head(cut).float(), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        to_client[client].put(cut.grad / scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        if i % 80 == 79:
            print(f"message {i + 1} loss {loss.item() * 1e6:.4f} mm2")


def client(rank, turn, other):
    frames, target = echoes(400, seed=10 + rank)
    order = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.Adam(stem.parameters(), lr=2e-3)
    for _ in range(ROUNDS):
        turn.acquire()
        pick = torch.randint(len(frames), (BATCH,), generator=order).to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            cut = stem(frames[pick])
        to_server.put((rank, cut.detach(), target[pick]))
        cut.backward(to_client[rank].get())
        optimizer.step()
        other.release()


turns = [threading.Semaphore(1), threading.Semaphore(0)]
threads = [threading.Thread(target=server)]
threads += [threading.Thread(target=client, args=(r, turns[r], turns[1 - r])) for r in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

frames, target = echoes(800, seed=99)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = 1000 * (head(stem(frames)).float() - target).abs().mean().item()
print(f"METRIC {error:.4f}")
