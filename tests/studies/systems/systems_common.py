"""What the programs of the table of systems share: a small net, batches, a step, the digest of all that came of it."""

import hashlib
import random
import sys

import numpy as np
import torch
from torch import nn

STEPS = 6


def net(width=16, hidden=32, out=4):
    """Return a small network, drawn from a seed."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # as scripts do it
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.Dropout(0.1),
        nn.Linear(hidden, out),
    )


def batches(steps=STEPS, rows=8, width=16, out=4):
    """Yield batches drawn from a generator of their own."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(rows, width, generator=generator)
        yield x, torch.randint(0, out, (rows,), generator=generator)


def loss_of(logits, labels):
    """Return the loss of logits in whatever precision."""
    return nn.functional.cross_entropy(logits.float(), labels)


def train(model, optimizer, scaler=None, dtype=torch.float16, data=None, forward=None):
    """Train as a page of PyTorch's tutorials does; return the losses."""
    losses = []
    for x, y in data or batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of((forward or model)(x), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    return losses


def scaler():
    """Return a scaler whose scale moves in a few steps."""
    return torch.amp.GradScaler("cpu", growth_interval=3)


def digest(losses, tensors):
    """Print what tells two runs apart: losses, parameters, and the state of every random generator, bit for bit."""
    found = hashlib.sha256(repr([float(loss) for loss in losses]).encode())
    for tensor in tensors:
        held = getattr(tensor, "_local_tensor", tensor).detach().cpu().contiguous()
        found.update(held.flatten().view(torch.uint8).numpy().tobytes() if held.numel() else b"")
    found.update(torch.get_rng_state().numpy().tobytes())
    found.update(repr(random.getstate()).encode())
    found.update(repr(np.random.get_state()).encode())  # noqa: NPY002  # it is the state that scripts use
    sys.stdout.write(f"DIGEST {found.hexdigest()[:16]}\n")  # in one piece: ranks write at once
    sys.stdout.flush()


def parameters(*models):
    """Return the parameters of models."""
    return [parameter for model in models for parameter in model.parameters()]
