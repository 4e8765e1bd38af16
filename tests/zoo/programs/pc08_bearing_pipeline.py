"""Faults of bearings from vibration: the backbone runs in a thread of its own, the head and the losses in the main one."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"

CLASSES, LENGTH, BATCH, STEPS = 6, 96, 64, 160


def vibration(n):
    """Windows of an accelerometer; each fault rings at its own rate, with a random phase and some load."""
    label = torch.randint(CLASSES, (n,), device=device)
    t = torch.arange(LENGTH, device=device) / LENGTH
    rate = (5 + 2.0 * label.float() + 0.3 * torch.randn(n, device=device)).unsqueeze(1)
    phase = 6.283 * torch.rand(n, 2, device=device)
    x = torch.sin(6.283 * rate * t + phase[:, :1]) + 0.6 * torch.sin(12.566 * rate * t + phase[:, 1:])
    return (x * (0.7 + 0.6 * torch.rand(n, 1, device=device)) + 0.7 * torch.randn_like(x)).unsqueeze(1), label


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 12, 15, stride=2, padding=7)
        self.conv2 = nn.Conv1d(12, 16, 7, stride=2, padding=3)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return x.mean(dim=2)


class BackboneThread(threading.Thread):
    """Takes windows from a queue and gives features back, so that the next batch can be prepared meanwhile."""

    def __init__(self, backbone):
        super().__init__(daemon=True)
        self.backbone, self.inbox, self.outbox = backbone, queue.Queue(), queue.Queue()

    def run(self):
        # autocast is per thread
        with torch.autocast("cuda", dtype=torch.bfloat16):
            while True:
                windows = self.inbox.get()
                if windows is None:
                    return
                self.outbox.put(self.backbone(windows))

    def features(self, windows):
        self.inbox.put(windows)
        return self.outbox.get().float()


backbone = Backbone().to(device)
head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, CLASSES)).to(device)
opt_backbone = torch.optim.AdamW(backbone.parameters(), lr=5e-3)
opt_head = torch.optim.AdamW(head.parameters(), lr=5e-3)
runner = BackboneThread(backbone)
runner.start()

for step in range(STEPS):
    x, label = vibration(BATCH)
    loss = F.cross_entropy(head(runner.features(x)), label)  # the head stays in FP32
    opt_backbone.zero_grad(set_to_none=True)
    opt_head.zero_grad(set_to_none=True)
    loss.backward()
    opt_backbone.step()
    opt_head.step()
    if step % 40 == 0:
        print(f"{step:4d}  loss {loss.item():.3f}")
runner.inbox.put(None)
runner.join()

x, label = vibration(4096)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    scores = head(backbone(x))
print(f"metric {(scores.argmax(dim=1) == label).float().mean().item():.4f}")
