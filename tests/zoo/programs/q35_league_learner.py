"""A learner thread computes gradients for positions that the main thread plays and queues."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"

net = nn.Sequential(nn.Linear(18, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 9)).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
jobs, results = queue.Queue(maxsize=2), queue.Queue()
lines = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]],
                     device=device)


def play(n):
    """Boards of noughts and crosses, and the square that the expert takes."""
    board = torch.randint(-1, 2, (n, 9), device=device)
    board[torch.arange(n), torch.randint(0, 9, (n,), device=device)] = 0
    tri = board[:, lines]
    own, other = (tri == 1).sum(2), (tri == -1).sum(2)
    value = 3.0 * (own == 2) + 2.0 * (other == 2) + 0.5 * (own == 1)
    score = torch.zeros(n, 9, device=device)
    for i, line in enumerate(lines):
        score[:, line] += value[:, i:i + 1]
    score += torch.linspace(0, 0.1, 9, device=device)
    score[board != 0] = -1
    return torch.cat([(board == 1), (board == -1)], 1).float(), score.argmax(1)


def learner():
    with torch.autocast("cuda", dtype=torch.float16):
        while True:
            job = jobs.get()
            if job is None:
                return
            planes, move = job
            loss = F.cross_entropy(net(planes), move)
            scaler.scale(loss).backward()
            results.put(loss.detach())


def main():
    thread = threading.Thread(target=learner, daemon=True)
    thread.start()
    for step in range(350):
        optimizer.zero_grad()
        jobs.put(play(128))
        loss = results.get()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 0:
            print(f"game batch {step}: loss {loss.item():.4f}")
    jobs.put(None)
    thread.join()
    with torch.no_grad():
        planes, move = play(3000)
        accuracy = (net(planes).argmax(1) == move).float().mean()
    print("METRIC", round(accuracy.item(), 4))


main()
