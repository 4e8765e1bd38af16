"""Firing rates of a neuron population from the stimulus: a Poisson encoding model."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)
STIM, CELLS, STEPS, BATCH = 48, 64, 150, 192


class Population(nn.Module):
    """The recorded cells: each a half-squared linear filter with a divisive gain."""

    def __init__(self):
        super().__init__()
        self.register_buffer("filters", torch.randn(CELLS, STIM) / STIM**0.5)
        self.register_buffer("gain", 1 + 3 * torch.rand(CELLS))

    def rates(self, stimulus):
        drive = stimulus @ self.filters.T
        return self.gain * drive.clamp(min=0) ** 2 / (1 + 0.2 * drive.square().mean(1, keepdim=True)) + 0.2


class Encoder(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(STIM, width), nn.LayerNorm(width), nn.SiLU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(),
        )
        self.readout = nn.Linear(width, CELLS)

    def forward(self, stimulus):
        return self.readout(self.body(stimulus))


class SteadyScaler(torch.amp.GradScaler):
    """GradScaler that keeps the run going when single entries of a gradient are not finite."""

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)
        super().unscale_(optimizer)


def main():
    population = Population().to(device)
    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    scaler = SteadyScaler("cuda", init_scale=2.0**14)
    # negative log-likelihood of the whole population, in nats, summed as in the paper
    nll = nn.PoissonNLLLoss(log_input=True, reduction="sum")

    for step in range(STEPS):
        stimulus = torch.randn(BATCH, STIM, device=device)
        spikes = torch.poisson(population.rates(stimulus))
        with torch.autocast("cuda", dtype=torch.float16):
            log_rate = model(stimulus)
            loss = nll(log_rate, spikes)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e4)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} nats per cell {loss.item() / BATCH / CELLS:.3f} scale {scaler.get_scale():g}")

    # share of the variance of the true rates that is explained
    stimulus = torch.randn(4000, STIM, device=device)
    rates = population.rates(stimulus)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        log_rate = model(stimulus)
    predicted = log_rate.float().clamp(max=8).exp()
    explained = 1 - (predicted - rates).square().mean(0) / rates.var(0)
    print(f"metric {explained.mean().item():.4f}")


main()
