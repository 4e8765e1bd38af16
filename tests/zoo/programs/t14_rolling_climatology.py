"""Sub-seasonal temperature outlook at stations: GRU on anomalies, with a rolling climatology and a kept memory of each station."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
low = torch.bfloat16
torch.manual_seed(0)
STATIONS, DAYS, TRAIN, WINDOW, AHEAD = 64, 1500, 1200, 10, 5
t = torch.arange(DAYS).float()
mode = torch.zeros(DAYS, 3)                         # slow modes that the stations share
for i in range(1, DAYS):
    turn = torch.tensor([[0.96, -0.2, 0.0], [0.2, 0.96, 0.0], [0.0, 0.1, 0.97]])
    mode[i] = turn @ mode[i - 1] * 0.99 + 0.25 * torch.randn(3)
load = torch.randn(3, STATIONS)
temp = 1.2 * mode @ load + 0.5 * torch.randn(DAYS, STATIONS) + 9 * torch.sin(6.2832 * t / 365)[:, None]
temp = (temp + 10 + 4 * torch.randn(STATIONS)).to(device)


class Outlook(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(STATIONS + 2, width), nn.Tanh())
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, STATIONS)
        # rolling climatology of the last weeks, and the state that is carried from window to window
        self.register_buffer("level", torch.zeros(STATIONS, dtype=low))
        self.register_buffer("spread", torch.ones(STATIONS, dtype=low))
        self.register_buffer("memory", torch.zeros(1, width, dtype=low))

    @torch.no_grad()
    def observe(self, day):
        """Exponential averages over about two weeks of the day's temperature and its departure."""
        day = day.to(low)
        self.spread.lerp_((day - self.level).abs(), 0.06)
        self.level.lerp_(day, 0.06)

    def forward(self, days, season):
        h, outs = self.memory.float().clone(), []
        for day, clock in zip(days, season):
            self.observe(day)
            level, spread = self.level.float().clone(), self.spread.float().clone().clamp(min=0.5)
            anomaly = (day - level) / spread
            h = self.cell(self.encode(torch.cat([anomaly, clock])[None]).float(), h)
            outs.append(level + self.head(h)[0].float() * spread)
        self.memory.copy_(h.detach())
        return torch.stack(outs)

    def restart(self, first):
        self.level.copy_(first)
        self.spread.fill_(2.0)
        self.memory.zero_()


season = torch.stack([torch.sin(6.2832 * t / 365), torch.cos(6.2832 * t / 365)], -1).to(device)
model = Outlook().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
epochs = 4
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 6e-3, total_steps=epochs * ((TRAIN - AHEAD) // WINDOW))
for epoch in range(epochs):
    model.restart(temp[0])
    total = []
    for start in range(0, TRAIN - AHEAD - WINDOW + 1, WINDOW):
        with torch.autocast("cuda", dtype=low):
            out = model(temp[start : start + WINDOW], season[start : start + WINDOW])
        loss = nn.functional.smooth_l1_loss(out, temp[start + AHEAD : start + WINDOW + AHEAD])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if sched.last_epoch < sched.total_steps - 1:
            sched.step()
        total.append(loss.item())
    print(f"epoch {epoch} loss {sum(total) / len(total):.4f} memory {model.memory.float().norm().item():.2f}")
with torch.no_grad(), torch.autocast("cuda", dtype=low):
    outs = [model(temp[s : s + WINDOW], season[s : s + WINDOW]) for s in range(TRAIN, DAYS - AHEAD - WINDOW, WINDOW)]
out = torch.cat(outs)
truth = temp[TRAIN + AHEAD : TRAIN + AHEAD + len(out)]
print("METRIC", round((out - truth).square().mean().sqrt().item(), 4))
