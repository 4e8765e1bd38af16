"""Daily melt of a glacier from weather records; the job is preempted once and resumes from its checkpoint."""
import os
import pickle
import tempfile

import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def build():
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=4e-3), torch.amp.GradScaler("cuda")


def records(n):
    x = torch.randn(n, 8)
    warm = torch.relu(x[:, 0] + 0.4 * x[:, 1])
    melt = 0.012 * warm * (1 + 0.5 * torch.tanh(x[:, 2])) + 0.004 * torch.sin(2 * x[:, 3])  # metres a day
    return x.to(device), (melt + 0.0005 * torch.randn(n)).to(device)


def pack(state, dtype=None):
    """Arrays for the file; with a type, smaller ones: checkpoints go over a satellite link."""
    if isinstance(state, torch.Tensor):
        return (state.to(dtype) if dtype and state.dim() else state).cpu().numpy()
    if isinstance(state, dict):
        return {k: pack(v, dtype) for k, v in state.items()}
    return [pack(v, dtype) for v in state] if isinstance(state, list) else state


def unpack(state):
    if isinstance(state, np.ndarray):
        return torch.as_tensor(state).float()
    if isinstance(state, dict):
        return {k: unpack(v) for k, v in state.items()}
    return [unpack(v) for v in state] if isinstance(state, list) else state


def save(path, model, optimizer, scaler, step):
    state = {
        "model": pack(model.state_dict()),
        "optimizer": pack(optimizer.state_dict(), torch.float16),
        "scaler": scaler.state_dict(),
        "step": step,
    }
    with open(path, "wb") as file:
        pickle.dump(state, file)


def resume(path):
    model, optimizer, scaler = build()
    with open(path, "rb") as file:
        state = unpack(pickle.load(file))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return model, optimizer, scaler, state["step"]


def train(model, optimizer, scaler, data, start, stop):
    x, melt = data
    for step in range(start, stop):
        rows = torch.randint(0, len(x), (256,), device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x[rows]).squeeze(-1).float(), melt[rows])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} rmse {loss.sqrt().item() * 1000:.2f} mm")


def main():
    torch.manual_seed(2)
    data, held = records(4000), records(1000)
    model, optimizer, scaler = build()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        train(model, optimizer, scaler, data, 0, 150)
        save(path, model, optimizer, scaler, 150)
        model, optimizer, scaler, step = resume(path)
    train(model, optimizer, scaler, data, step, 180)
    with torch.no_grad():
        rmse = (model(held[0]).squeeze(-1) - held[1]).square().mean().sqrt() * 1000
    print(f"metric {rmse.item():.4f}")


main()
