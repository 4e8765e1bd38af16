"""Failure forecasting on a plant's sensor graph: a node memory updated by events (temporal graph network)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(29)

NODES, DIM, BATCH = 400, 32, 64


class NodeMemory(nn.Module):
    """State and time of the last event of each node; kept small because plants have millions of tags."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(NODES, DIM, dtype=torch.float16))
        self.register_buffer("last_seen", torch.zeros(NODES, dtype=torch.float16))

    def read(self, node, now):
        gap = now - self.last_seen[node].float()
        return self.state[node].float(), gap

    @torch.no_grad()
    def write(self, node, state, now):
        self.state[node] = state.to(self.state.dtype)
        self.last_seen[node] = now.to(self.last_seen.dtype)


class AlarmModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = NodeMemory()
        self.update = nn.Sequential(nn.Linear(DIM + 4 + 8, 64), nn.SiLU(), nn.Linear(64, DIM), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(2 * DIM + 16, 64), nn.SiLU(), nn.Linear(64, 1))
        self.register_buffer("rates", torch.logspace(-1.5, 0.8, 8))

    def encode_gap(self, gap):
        return torch.exp(-gap.clamp(min=0)[:, None] / (10 * self.rates))

    def forward(self, src, dst, feat, now):
        s_state, s_gap = self.memory.read(src, now)
        d_state, d_gap = self.memory.read(dst, now)
        s_enc, d_enc = self.encode_gap(s_gap), self.encode_gap(d_gap)
        new_s = self.update(torch.cat([s_state, feat, s_enc], dim=1))
        new_d = self.update(torch.cat([d_state, feat, d_enc], dim=1))
        score = self.head(torch.cat([new_s, new_d, s_enc, d_enc], dim=1)).squeeze(1)
        self.memory.write(torch.cat([src, dst]), torch.cat([new_s, new_d]), torch.cat([now, now]))
        return score


def event_stream(steps):
    """Events in time order (seconds since midnight); alarms follow bursts on both ends of an edge."""
    clock, last = 33000.0, torch.zeros(NODES)
    last.uniform_(32900.0, 33000.0)
    for _ in range(steps):
        perm = torch.randperm(NODES)
        src, dst = perm[:BATCH], perm[BATCH:2 * BATCH]
        now = clock + torch.sort(6.0 * torch.rand(BATCH)).values
        clock += 6.0
        quick = (now - last[src] < 11.0) & (now - last[dst] < 30.0)
        label = (quick ^ (torch.rand(BATCH) < 0.02)).float()
        last[src], last[dst] = now, now
        yield src, dst, torch.randn(BATCH, 4), now, label


def main():
    model = AlarmModel().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler(device)
    losses, hits = [], []
    for step, batch in enumerate(event_stream(350)):
        src, dst, feat, now, label = (t.to(device) for t in batch)
        with torch.autocast(device_type=device, dtype=torch.float16):
            score = model(src, dst, feat, now)
            loss = F.binary_cross_entropy_with_logits(score, label)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
        hits.append(((score > 0) == (label > 0.5)).float().mean().item())
        if step % 50 == 0:
            print(f"event batch {step:3d}  bce {losses[-1]:.4f}")
    bce, acc = sum(losses[-50:]) / 50, sum(hits[-50:]) / 50
    print(f"last 50 batches: bce {bce:.3f}  accuracy {acc:.3f}  (alarm rate {label.mean():.2f})")
    return model, bce, acc


if __name__ == "__main__":
    model, bce, acc = main()
