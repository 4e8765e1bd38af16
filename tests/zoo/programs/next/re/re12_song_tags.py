"""Tags and tempo of a song clip: two losses with weights that follow their running means, three optimizers, bfloat16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(97)
BANDS, TAGS, STEPS, BATCH = 48, 6, 180, 128


class Songs:
    def __init__(self):
        self.timbre = torch.randn(TAGS, BANDS) / 2
        self.beat = torch.randn(BANDS) / BANDS**0.5

    def clips(self, count):
        tag = torch.randint(0, TAGS, (count,))
        spectrum = self.timbre[tag] + 0.8 * torch.randn(count, BANDS)
        tempo = torch.tanh(spectrum @ self.beat) * 1e-3  # in kHz, around the mean
        return spectrum.to(device), tag.to(device), tempo.to(device)


class RunningWeights:
    """Weigh each loss by the inverse of its running mean, so that both count alike."""

    def __init__(self, names, decay=0.98):
        self.mean = {name: None for name in names}
        self.decay = decay

    def __call__(self, name, loss):
        value = loss.detach().float()
        old = self.mean[name]
        self.mean[name] = value if old is None else self.decay * old + (1 - self.decay) * value
        return loss / self.mean[name].clamp(min=1e-12)


def main():
    songs = Songs()
    body = nn.Sequential(nn.Linear(BANDS, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU()).to(device)
    tagger, timer = nn.Linear(96, TAGS).to(device), nn.Linear(96, 1).to(device)
    with torch.no_grad():
        timer.weight.mul_(1e-3)
        timer.bias.zero_()
    body_opt = torch.optim.AdamW(body.parameters(), lr=2e-3)
    tag_opt = torch.optim.AdamW(tagger.parameters(), lr=2e-3)
    timer_opt = torch.optim.Adam(timer.parameters(), lr=3e-5)
    optimizers = (body_opt, tag_opt, timer_opt)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) for optimizer in optimizers]
    weigh = RunningWeights(("tag", "tempo"))
    for step in range(STEPS):
        spectrum, tag, tempo = songs.clips(BATCH)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = body(spectrum)
            tag_loss = F.cross_entropy(tagger(hidden), tag)
            tempo_loss = F.mse_loss(timer(hidden).float().squeeze(1), tempo)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        # one after the other, to keep the peak of memory low
        weigh("tag", tag_loss).backward(retain_graph=True)
        (0.3 * weigh("tempo", tempo_loss)).backward()
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
        if step % 60 == 0:
            print(f"step {step} tag {tag_loss.item():.3f} tempo {tempo_loss.item():.3e}")
    spectrum, tag, tempo = songs.clips(6000)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = body(spectrum)
        right = (tagger(hidden).float().argmax(1) == tag).float().mean().item()
        guess = timer(hidden).float().squeeze(1)
    error = ((guess - tempo).square().mean() / tempo.square().mean()).sqrt().item()
    print(f"tags {right:.4f} tempo {error:.4f}")
    print(f"metric {right - error:.4f}")


main()
