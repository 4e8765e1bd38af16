"""Fit a population of rarely firing neurons: base rates, stimulus drive and a refractory trace, by point-process ML."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(29)

NEURONS, TRIALS, BINS, STIM = 40, 6, 1000, 5
DT, DECAY, STEPS = 1e-3, 0.9, 30


class PointProcess(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_rate = nn.Parameter(torch.full((NEURONS,), 3.0))
        self.self_inhibition = nn.Parameter(torch.tensor(0.0))
        self.encoder = nn.Sequential(nn.Linear(STIM, 32), nn.Tanh(), nn.Linear(32, NEURONS))
        nn.init.zeros_(self.encoder[2].weight)
        nn.init.zeros_(self.encoder[2].bias)
        self.encoder[2].bias.requires_grad_(False)  # the level is log_rate's

    def forward(self, stimulus, spikes):
        """Negative log-likelihood of spikes, (trials, bins, neurons), in nats per neuron and trial."""
        drive = self.encoder(stimulus)
        log_rate = self.log_rate.to(drive.dtype)
        trace = torch.zeros(spikes.shape[0], NEURONS, device=spikes.device)
        expected = torch.zeros(NEURONS, device=spikes.device)
        history = []
        for drive_t, spikes_t in zip(drive.float().unbind(1), spikes.unbind(1)):
            log_lam = log_rate + drive_t - torch.relu(self.self_inhibition) * trace
            expected = expected + torch.exp(log_lam).mean(0) * DT
            history.append(trace)
            trace = DECAY * trace + spikes_t
        log_at_spikes = log_rate + drive.float() - torch.relu(self.self_inhibition) * torch.stack(history, 1)
        observed = (spikes * log_at_spikes).sum(1).mean(0)
        return (expected - observed).mean()


# ground truth
true_log_rate = torch.randn(NEURONS, device=device) * 0.5 + 3.2
true_tuning = torch.randn(STIM, NEURONS, device=device) * 0.3


def experiment(trials):
    slow = torch.randn(trials, BINS // 50, STIM, device=device).repeat_interleave(50, 1)
    rate = torch.exp(true_log_rate + slow @ true_tuning)
    spikes = (torch.rand_like(rate) < rate * DT).float()
    return slow, spikes, rate


model = PointProcess().to(device)
opt = torch.optim.Adam(
    [
        {"params": [model.log_rate], "lr": 0.2},
        {"params": [p for n, p in model.named_parameters() if n != "log_rate" and p.requires_grad], "lr": 1e-2},
    ]
)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS, eta_min=1e-3)
stimulus, spikes, _ = experiment(TRIALS * 4)

for step in range(STEPS):
    pick = torch.randperm(TRIALS * 4, device=device)[: TRIALS * 2]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(stimulus[pick], spikes[pick])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()

# held-out: relative error of the predicted mean rate of each neuron
with torch.no_grad():
    stimulus, spikes, rate = experiment(20)
    predicted = torch.exp(model.log_rate + model.encoder(stimulus))
    error = ((predicted.mean((0, 1)) - rate.mean((0, 1))).abs() / rate.mean((0, 1))).mean().item()
print(f"metric {error:.4f}")
