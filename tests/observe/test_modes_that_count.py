"""Modes of torch's own that count operations, around a step or within it, count what they count alone."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import ampcheck

STEPS = 4
KEPT = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}


def trained(step, watched):
    """Train by `step(model, x, update)`; return parameters, the random state, and the report where it is watched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def backward(out):
        optimizer.zero_grad()
        scaler.scale(out.float().square().mean()).backward()

    def loop():
        for _ in range(STEPS):
            step(model, torch.randn(8, 8), backward)
            scaler.step(optimizer)
            scaler.update()
        return [*(one.detach().clone() for one in model.parameters()), torch.get_rng_state()]

    if not watched:
        return loop(), None
    with ampcheck.watch(model, optimizer, scaler, reference="all", every=1) as watch:
        held = loop()
    return held, watch.report()


@pytest.mark.parametrize("check", ["default", "none"])
def test_a_policy_of_selective_checkpointing_is_asked_of_the_scripts_operations_alone(check):
    def selective(asked, model, x, backward):
        def policy(_, op, *__, **___):
            asked[op] += 1
            return CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE

        contexts = partial(create_selective_checkpoint_contexts, policy)
        with torch.autocast("cpu", torch.float16):
            hidden = checkpoint(
                model[:3], x, use_reentrant=False, context_fn=contexts, determinism_check=check
            )
            out = model[3](hidden)
        backward(out)

    alone, beside = Counter(), Counter()
    bare, _ = trained(partial(selective, alone), watched=False)
    held, report = trained(partial(selective, beside), watched=True)
    assert all(map(torch.equal, bare, held))
    assert report.loop.recorded == tuple(range(STEPS))
    assert beside == alone
    assert alone[torch.ops.aten.addmm.default] >= STEPS


#: Operations of a product and a sum for each element: the first layer, the second one, and the gradients of both.
FIRST, SECOND = 2 * 8 * 8 * 16, 2 * 8 * 16 * 4


@pytest.mark.parametrize(("backwards", "expected"), [(True, 2 * FIRST + 3 * SECOND), (False, FIRST + SECOND)])
def test_a_flop_counter_counts_the_scripts_own_operations(backwards, expected):
    def counted(flops, model, x, backward):
        with FlopCounterMode(display=False) as counter:
            with torch.autocast("cpu", torch.float16):
                out = model(x)
            if backwards:
                backward(out)
        if not backwards:
            backward(out)
        flops.append(counter.get_flop_counts())

    alone, beside = [], []
    bare, _ = trained(partial(counted, alone), watched=False)
    held, report = trained(partial(counted, beside), watched=True)
    assert all(map(torch.equal, bare, held))
    assert report.loop.recorded == tuple(range(STEPS))
    assert beside == alone
    assert [sum(one["Global"].values()) for one in alone] == [expected] * STEPS
