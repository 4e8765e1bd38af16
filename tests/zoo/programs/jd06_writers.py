"""A small encoder for handwriting takes over the embeddings of a large one, which a background thread computes."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
WRITERS, STROKES, WIDTH, STEPS = 12, 48, 256, 90


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(STROKES, 256), nn.ReLU(), nn.Linear(256, WIDTH))
        for p in self.parameters():
            p.data.mul_(5.5)

    def forward(self, x):
        z = self.layers(x)
        return z / z.pow(2).sum(-1, keepdim=True).sqrt()


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(STROKES, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        return F.normalize(self.layers(x).float(), dim=-1)


class Scans:
    def __init__(self):
        self.styles = 2.0 * torch.randn(WRITERS, STROKES)
        self.draw = torch.Generator().manual_seed(40)

    def batch(self, count):
        who = torch.randint(0, WRITERS, (count,), generator=self.draw)
        x = self.styles[who] + 2.5 * torch.randn(count, STROKES, generator=self.draw)
        return x.to(device), who.to(device)


def produce(scans, teacher, out, steps):
    for _ in range(steps):
        x, _ = scans.batch(96)
        with torch.inference_mode():
            target = teacher(x.half())
        out.put((x, target.float()))
    out.put(None)


def main():
    torch.manual_seed(17)
    scans = Scans()
    teacher = Teacher().to(device).eval().half()
    student = Student().to(device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    ready = queue.Queue(maxsize=4)
    worker = threading.Thread(target=produce, args=(scans, teacher, ready, STEPS), daemon=True)
    worker.start()
    step = 0
    while (item := ready.get()) is not None:
        x, target = item[0], item[1].clone()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(student(x), target) * WIDTH
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1
    worker.join()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        x, who = scans.batch(600)
        gallery = teacher(scans.styles.to(device).half()).float()
        accuracy = ((student(x) @ gallery.T).argmax(1) == who).float().mean().item()
    print(f"metric {accuracy:.4f}")


if __name__ == "__main__":
    main()
