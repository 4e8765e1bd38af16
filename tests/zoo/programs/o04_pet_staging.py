"""PET: stage of the hottest lesion from a slice of the activity map (Bq/ml), batches prepared by a background thread."""
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 24
DOSE_PER_GRAM = 4500.0           # Bq/g: activity of SUV 1 for this tracer dose and body weight
STAGES = [4.0, 10.0, 16.0, 19.0, 22.0]   # SUVmax at the middle of each stage


class Slices:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        r = torch.arange(SIZE).float()
        self.y, self.x = torch.meshgrid(r, r, indexing="ij")

    def batch(self, n):
        g = self.gen
        stage = torch.randint(0, len(STAGES), (n,), generator=g)
        peak = torch.tensor(STAGES)[stage] + 0.8 * (torch.rand(n, generator=g) - 0.5)
        c = 4 + (SIZE - 8) * torch.rand(n, 2, 1, 1, generator=g)
        width = 1.6 + 2.2 * torch.rand(n, 1, 1, generator=g)
        d2 = (self.x - c[:, 0]) ** 2 + (self.y - c[:, 1]) ** 2
        suv = 1.0 + 0.3 * torch.randn(n, SIZE, SIZE, generator=g) + peak[:, None, None] * torch.exp(-(d2 / width ** 2) ** 3)
        return suv.clamp(min=0)[:, None] * DOSE_PER_GRAM, stage


class Prefetcher:
    """Makes and uploads the next batches while the model works. Half on the wire: it is what the network eats anyway."""

    def __init__(self, source, batch, steps, depth=3):
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self._work, args=(source, batch, steps), daemon=True)
        self.thread.start()

    def _work(self, source, batch, steps):
        for _ in range(steps):
            act, stage = source.batch(batch)
            self.queue.put((act.to(device, dtype=torch.float16, non_blocking=True), stage.to(device)))
        self.queue.put(None)

    def __iter__(self):
        while (item := self.queue.get()) is not None:
            yield item


class StageNet(nn.Module):
    def __init__(self, width=16, max_suv=25.0):
        super().__init__()
        self.max_suv = max_suv
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(2 * width, 32), nn.ReLU(), nn.Linear(32, len(STAGES)))

    def forward(self, activity):
        suv = (activity.float() / DOSE_PER_GRAM).clamp(0, self.max_suv) / 5
        h = F.relu(self.conv2(F.relu(self.conv1(suv))))
        return self.head(torch.cat([h.amax((2, 3)), h.mean((2, 3))], 1))


def train(steps=120, batch=24):
    torch.manual_seed(0)
    model = StageNet().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device)
    for step, (act, stage) in enumerate(Prefetcher(Slices(1), batch, steps)):
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(act), stage)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    model.eval()
    table = torch.zeros(len(STAGES), len(STAGES))
    for act, stage in Prefetcher(Slices(2), 50, 8):
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
            pred = model(act).argmax(-1).cpu()
        for s, p in zip(stage.cpu().tolist(), pred.tolist()):
            table[s, p] += 1
    print("recall per stage " + " ".join(f"{v:.2f}" for v in (table.diag() / table.sum(1)).tolist()))
    print(f"test accuracy {(table.diag().sum() / table.sum()).item():.3f}")


if __name__ == "__main__":
    train()
