"""Hand gestures from muscle signals across sessions: domain-adversarial training, three optimizers and one scaler."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"

CHANNELS, LENGTH, GESTURES, SESSIONS = 6, 48, 5, 3
STEPS, BATCH = 140, 64
mixing = torch.randn(GESTURES, CHANNELS)
rates = torch.rand(GESTURES, CHANNELS) * 0.8 + 0.2
gains = 1 + 0.35 * torch.randn(SESSIONS, CHANNELS)  # electrodes sit a little differently each time


def record(n, sessions, generator=None):
    gesture = torch.randint(GESTURES, (n,), generator=generator)
    session = torch.randint(sessions[0], sessions[1], (n,), generator=generator)
    t = torch.arange(LENGTH)
    phase = 6.28 * torch.rand(n, CHANNELS, 1, generator=generator)
    wave = mixing[gesture][..., None] * torch.sin(rates[gesture][..., None] * t + phase)
    wave = wave * gains[session][..., None] + 1.2 * torch.randn(n, CHANNELS, LENGTH, generator=generator)
    return wave, gesture, session


def feed(ready, steps):
    """Runs in a thread: draws batches and hands them over in half precision."""
    generator = torch.Generator()
    generator.manual_seed(2)
    for _ in range(steps):
        wave, gesture, session = record(BATCH, (0, SESSIONS), generator)
        ready.put((wave.to(device, torch.float16), gesture.to(device), session.to(device)))


class Encoder(nn.Module):
    """Overlapping windows of all channels, coded one by one and averaged."""

    def __init__(self, window=12, width=64):
        super().__init__()
        self.window = window
        self.body = nn.Sequential(nn.Linear(CHANNELS * window, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, wave):
        windows = wave.unfold(2, self.window, self.window // 2).transpose(1, 2).flatten(2)
        return self.body(windows).mean(1)


encoder = Encoder().to(device)
classifier = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, GESTURES)).to(device)
critic = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, SESSIONS)).to(device)
opt_encoder = torch.optim.Adam(encoder.parameters(), lr=4e-3)
opt_classifier = torch.optim.Adam(classifier.parameters(), lr=4e-3)
opt_critic = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

ready = queue.Queue(maxsize=3)
threading.Thread(target=feed, args=(ready, STEPS), daemon=True).start()
for step in range(STEPS):
    wave, gesture, session = ready.get()
    # the critic learns to tell the sessions apart
    with torch.autocast("cuda", dtype=torch.float16):
        code = encoder(wave)
        critic_loss = F.cross_entropy(critic(code.detach()), session)
    opt_critic.zero_grad(set_to_none=True)
    scaler.scale(critic_loss).backward()
    scaler.step(opt_critic)
    # encoder and classifier learn the gestures, the encoder also hides the session
    with torch.autocast("cuda", dtype=torch.float16):
        hide = torch.log_softmax(critic(code), 1).mean()
        loss = F.cross_entropy(classifier(code), gesture) - 0.1 * hide
    opt_encoder.zero_grad(set_to_none=True)
    opt_classifier.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt_encoder)
    nn.utils.clip_grad_norm_(encoder.parameters(), 5.0)
    scaler.step(opt_encoder)
    scaler.step(opt_classifier)
    scaler.update()

wave, gesture, _ = record(6000, (0, SESSIONS))
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (classifier(encoder(wave.to(device))).argmax(1) != gesture.to(device)).float().mean()
print(f"loss scale at the end {scaler.get_scale():.0f}")
print(f"metric {error.item():.4f}")
