"""One scaler, several optimizers in turn: every skip is told, at its own step and of its own optimizer."""

import contextlib

import pytest
import torch
from torch import nn

import ampcheck


def skips(scaler, *optimizers):
    """Return of each optimizer whether its scaler found an infinity, as the scaler itself holds it."""
    held = [scaler._per_optimizer_states[id(one)]["found_inf_per_device"].values() for one in optimizers]
    return [any(float(value) for value in found) for found in held]


def trained(spoilt, watched, steps=4):
    """Train two optimizers a round, `spoilt` in these; return each step's skip and the scale after each round."""
    torch.manual_seed(0)
    g, d = nn.Linear(4, 8), nn.Linear(8, 1)
    og, od = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
    scaler, told, scales = torch.amp.GradScaler("cpu", init_scale=2.0**12), [], []
    with watched:
        for step in range(steps):
            with torch.autocast("cpu", torch.float16):
                fake = g(torch.randn(16, 4))
                loss = d(fake.detach()).float().square().mean() * (1e9 if (step, "d") in spoilt else 1.0)
            od.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(od)
            with torch.autocast("cpu", torch.float16):
                loss = d(fake).float().square().mean() * (1e9 if (step, "g") in spoilt else 1.0)
            og.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(og)
            told += skips(scaler, od, og)
            scaler.update()
            scales.append(scaler.get_scale())
    return told, scales, [*g.parameters(), *d.parameters()]


@pytest.mark.parametrize(
    "spoilt",
    [
        {(0, "d"), (0, "g")},  # both of the first round
        {(0, "g")},
        {(1, "d")},
        {(0, "d"), (2, "d"), (2, "g")},
        set(),
    ],
    ids=["both of the first", "the second", "a later one", "several", "none"],
)
def test_the_skips_of_each_optimizer_are_told_at_their_own_steps_and_all_of_them(spoilt):
    seen = ampcheck.watch(first=2)
    told, scales, weights = trained(spoilt, seen)
    loop = seen.report().loop
    expected = [(at, f"optimizer {1 + at % 2}") for at, skipped in enumerate(told) if skipped]
    assert len(expected) == len(spoilt)
    events = [event for event in loop.scales if event.skipped]
    assert [(event.step, event.cause.optimizer) for event in events] == expected
    assert (loop.steps, loop.skipped) == (8, len(spoilt))
    rounds = [2.0**12, *scales]
    for event in events:  # the scale changes where the scaler is updated, which is once a round
        at = event.step // 2
        last = event is [one for one in events if one.step // 2 == at][-1]
        assert (event.before, event.after) == (rounds[at], rounds[at + last])
    assert all(map(torch.equal, trained(spoilt, contextlib.nullcontext())[2], weights))
