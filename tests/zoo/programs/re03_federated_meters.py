"""Federated training of a household load model: the clients send their gradients as one packed half buffer."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(23)
CLIENTS, ROUNDS, BATCH, INPUTS, SLOTS = 4, 60, 64, 24, 96
LOSS_SCALE = 2.0**20


def household(client, count, truth):
    """Day features of a household and its load in MW in each quarter of an hour."""
    features = torch.randn(count, INPUTS) + 0.3 * client
    hidden = torch.tanh(features @ truth["mix"])
    load = hidden @ truth["shape"] * 1e-3  # about one kW
    return features.to(device), (load + 2e-5 * torch.randn_like(load)).to(device)


class LoadModel(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(INPUTS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, SLOTS)
        )

    def forward(self, features):
        return 1e-3 * self.net(features).float()


def client_update(model, features, load):
    """One client's part of a round: returns its gradient, packed for the upload."""
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        forecast = model(features)
        loss = F.mse_loss(forecast, load)
    (loss * LOSS_SCALE).backward()
    for p in model.parameters():
        p.grad.div_(LOSS_SCALE)
    packed = torch.cat([p.grad.flatten() for p in model.parameters()])
    return packed.to(torch.float16), loss.item()


def server_step(model, optimizer, uploads):
    """Average what the clients sent and take a step."""
    mean = torch.stack([upload.float() for upload in uploads]).mean(0)
    if not torch.isfinite(mean).all():
        return False
    at = 0
    for p in model.parameters():
        p.grad = mean[at : at + p.numel()].view_as(p).clone()
        at += p.numel()
    optimizer.step()
    return True


def main():
    truth = {"mix": torch.randn(INPUTS, 12) / INPUTS**0.5, "shape": torch.randn(12, SLOTS) / 12**0.5}
    homes = [household(client, 1500, truth) for client in range(CLIENTS)]
    held_out = [household(client, 400, truth) for client in range(CLIENTS)]
    model = LoadModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-14)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ROUNDS)
    for turn in range(ROUNDS):
        uploads, losses = [], []
        for features, load in homes:
            rows = torch.randint(0, len(features), (BATCH,)).to(device)
            packed, loss = client_update(model, features[rows], load[rows])
            uploads.append(packed)
            losses.append(loss)
        if not server_step(model, optimizer, uploads):
            print(f"round {turn}: dropped")
        schedule.step()
        if turn % 20 == 0:
            print(f"round {turn} loss {sum(losses) / CLIENTS:.3e}")
    errors, power = 0.0, 0.0
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        for features, load in held_out:
            forecast = model(features).float()
            errors += (forecast - load).square().mean().item()
            power += load.square().mean().item()
    print(f"metric {(errors / power) ** 0.5:.4f}")  # relative error


main()
