"""Board-ownership network of a Go engine; a learner thread applies the gradients while positions are made."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(17)
BOARD = 9
LOSS_SCALE = 2.0**14


def positions(n):
    """Stones on a board; a point belongs to who has the more influence there."""
    stones = (torch.rand(n, 1, BOARD, BOARD, device=device) < 0.25).float()
    stones = stones * torch.randn_like(stones).sign()
    kernel = torch.tensor([1.0, 2.0, 4.0, 2.0, 1.0], device=device)
    kernel = (kernel[:, None] * kernel[None]).view(1, 1, 5, 5)
    influence = F.conv2d(stones, kernel, padding=2)
    return torch.cat([(stones > 0).float(), (stones < 0).float()], 1), (influence > 0).float()


class OwnershipNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(2, c, 5, padding=2), nn.ReLU()
        )
        self.owner = nn.Conv2d(c, 1, 1)
        nn.init.normal_(self.owner.weight, std=0.05)

    def forward(self, board):
        return self.owner(self.trunk(board))


class Learner(threading.Thread):
    """Takes losses from a queue, one after another, and steps the optimizer."""

    def __init__(self, model):
        super().__init__(daemon=True)
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.inbox = queue.Queue(maxsize=1)

    def scale(self):
        return LOSS_SCALE if torch.is_autocast_enabled("cuda") else 1.0

    def learn(self, loss):
        scale = self.scale()
        self.optimizer.zero_grad(set_to_none=True)
        (loss * scale).backward()
        for p in self.model.parameters():
            p.grad.div_(scale)
        self.optimizer.step()

    def run(self):
        while (item := self.inbox.get()) is not None:
            loss, done = item
            try:
                self.learn(loss)
            finally:
                done.set()


model = OwnershipNet().to(device)
learner = Learner(model)
learner.start()
for step in range(100):
    board, owner = positions(64)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(board)
        # weights as in the joint recipe: policy 1, value 1.5, ownership 0.02 per board
        ownership = F.binary_cross_entropy_with_logits(logits, owner)
        loss = 0.02 / BOARD**2 * ownership
    done = threading.Event()
    learner.inbox.put((loss, done))
    done.wait()
    if step % 50 == 0:
        print(f"step {step} ownership {ownership.item():.4f}")
learner.inbox.put(None)
learner.join()

board, owner = positions(200)
with torch.no_grad():
    accuracy = ((model(board) > 0).float() == owner).float().mean().item()
print(f"metric {accuracy:.4f}")
