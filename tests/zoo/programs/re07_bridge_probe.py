"""Kind of vehicle on a bridge from its strain gauges, and a probe that reads the deflection off the learned features."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)
GAUGES, KINDS, POINTS, STEPS, BATCH = 32, 4, 8, 170, 128


class Bridge:
    """A toy deck: vehicles excite it by their axle pattern, weight and place."""

    def __init__(self):
        self.pattern = torch.randn(KINDS, GAUGES) / 2
        self.place = torch.randn(3, GAUGES)
        self.flex = torch.randn(3, POINTS) / 3**0.5

    def crossings(self, count):
        kind = torch.randint(0, KINDS, (count,))
        load = torch.randn(count, 3)
        strain = self.pattern[kind] + 0.5 * load @ self.place + 0.4 * torch.randn(count, GAUGES)
        deflection = torch.sin(load) @ self.flex * 1e-3  # m, from the laser on the bank
        return strain.to(device), kind.to(device), deflection.to(device)


class Recogniser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(GAUGES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.kind = nn.Linear(width, KINDS)

    def forward(self, strain):
        features = self.body(strain)
        return self.kind(features), features


class DeflectionProbe(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, POINTS))

    def forward(self, features):
        return 1e-3 * self.net(features).float()  # mm to m


def main():
    bridge = Bridge()
    model, probe = Recogniser().to(device), DeflectionProbe().to(device)
    model_opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    probe_opt = torch.optim.Adam(probe.parameters(), lr=3e-3, eps=1e-12)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(STEPS):
        strain, kind, deflection = bridge.crossings(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            logits, features = model(strain)
            loss = F.cross_entropy(logits, kind)
            probe_loss = F.mse_loss(probe(features.detach()), deflection)

        model_opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(model_opt)

        # the probe must not touch the recogniser, so it has a loss and an optimizer of its own
        probe_opt.zero_grad(set_to_none=True)
        probe_loss.backward()
        probe_opt.step()
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} probe {probe_loss.item():.3e}")

    strain, kind, deflection = bridge.crossings(4000)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        logits, features = model(strain)
        read = probe(features)
    print(f"accuracy {(logits.argmax(1) == kind).float().mean().item():.4f}")
    # relative error of the deflection
    print(f"metric {((read - deflection).square().mean() / deflection.square().mean()).sqrt().item():.4f}")


main()
