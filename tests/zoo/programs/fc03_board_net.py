import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)

amp_dtype = torch.float16
SIDE, PLANES, MOVES = 5, 3, 25
STEPS, BATCH = 150, 64


class Teacher:
    """Stands in for search results: move targets and outcomes for random positions."""

    def __init__(self):
        self.kernel = torch.randn(1, PLANES, 3, 3, device=device)
        self.weight = torch.randn(PLANES * SIDE * SIDE, device=device) / 8.0

    def positions(self, n):
        cells = torch.randint(0, PLANES, (n, SIDE, SIDE), device=device)
        planes = F.one_hot(cells, PLANES).permute(0, 3, 1, 2).float()
        scores = F.conv2d(planes, self.kernel, padding=1).flatten(1)
        return planes, scores.argmax(1), torch.tanh(planes.flatten(1) @ self.weight)


class BoardNet(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(PLANES, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 4, 1), nn.ReLU()
        )
        self.policy = nn.Conv2d(4, 1, 1)
        self.value = nn.Sequential(nn.Linear(4 * SIDE * SIDE, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())

    def forward(self, planes):
        h = self.trunk(planes)
        return self.policy(h).flatten(1), self.value(h.flatten(1)).squeeze(1)


def train_step(net, optimizer, scaler, batch):
    planes, move, outcome = batch
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        logits, value = net(planes)
        policy_loss = F.cross_entropy(logits, move)
        value_loss = F.mse_loss(value, outcome)

    scaler.scale(policy_loss).backward(retain_graph=True)
    scaler.unscale_(optimizer)
    policy_norm = nn.utils.clip_grad_norm_(net.parameters(), 5.0)

    scaler.scale(value_loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return policy_loss.item(), value_loss.item(), policy_norm.item()


def main():
    teacher = Teacher()
    net = BoardNet().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=amp_dtype != torch.float32)
    for step in range(STEPS):
        p, v, norm = train_step(net, optimizer, scaler, teacher.positions(BATCH))
        if step % 30 == 0:
            print(f"step {step} policy {p:.3f} value {v:.3f} policy grad norm {norm:.3f}")

    planes, move, _ = teacher.positions(2000)
    with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
        logits, _ = net(planes)
    print(f"metric {(logits.argmax(1) == move).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
