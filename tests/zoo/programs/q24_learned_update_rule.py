import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
WAYS, SHOTS, DIM, HID, TASKS, STEPS = 3, 4, 8, 48, 64, 160
STATE_CLIP = 0.05


def make_tasks(n):
    """Sequences of (x_t, y_{t-1}); the label of x_t only arrives with the next input."""
    length = WAYS * SHOTS
    proto = 1.6 * torch.randn(n, WAYS, DIM)
    order = torch.stack([torch.randperm(length) % WAYS for _ in range(n)])
    x = proto.gather(1, order[:, :, None].expand(-1, -1, DIM)) + 0.3 * torch.randn(n, length, DIM)
    prev = F.one_hot(order, WAYS).float().roll(1, dims=1)
    prev[:, 0] = 0
    return torch.cat([x, prev], dim=2).to(device), order.to(device)


class MetaLearner(nn.Module):
    """The recurrent state is where a task is learned; the weights are learned across tasks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(DIM + WAYS, HID)
        self.gates = nn.Linear(2 * HID, 2 * HID)
        self.cand = nn.Linear(2 * HID, HID)
        self.readout = nn.Linear(2 * HID, WAYS)

    def forward(self, seq):
        h = torch.zeros(seq.shape[0], HID, device=seq.device)
        logits = []
        for t in range(seq.shape[1]):
            e = torch.tanh(self.embed(seq[:, t]))
            logits.append(self.readout(torch.cat([h, e], dim=1)))
            r, z = torch.sigmoid(self.gates(torch.cat([h, e], dim=1))).chunk(2, dim=1)
            c = torch.tanh(self.cand(torch.cat([r * h, e], dim=1)))
            h = z * h + (1 - z) * c
            if h.requires_grad:
                h.register_hook(lambda g: g.clamp(-STATE_CLIP, STATE_CLIP))
        return torch.stack(logits, dim=1)


learner = MetaLearner().to(device)
opt = torch.optim.SGD(learner.parameters(), lr=0.3, momentum=0.9)
scaler = torch.amp.GradScaler("cuda", growth_interval=100)

for step in range(STEPS):
    seq, labels = make_tasks(TASKS)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = learner(seq)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if step % 25 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}  grad norm {norm.item():.4f}")

with torch.no_grad():
    seq, labels = make_tasks(512)
    pred = learner(seq).argmax(-1)
    late = (pred[:, -WAYS:] == labels[:, -WAYS:]).float().mean().item()
print(f"accuracy on the last {WAYS} queries {late:.3f}  final loss {loss.item():.4f}")
