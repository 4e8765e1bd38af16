"""Scalers that a script makes again and again: each has to find its scale anew."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def together(factor):
    """Train three models side by side, each with a scaler of its own, made at one line."""
    torch.manual_seed(0)
    models = [nn.Linear(8, 1).to("cuda") for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), 1e-7) for model in models]
    scalers = [torch.amp.GradScaler("cuda") for _ in models]
    skipped = 0
    for _ in range(8):
        x = torch.randn(64, 8, device="cuda")
        for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
            with torch.autocast("cuda", torch.float16):
                out = model(x)
            scale = scaler.get_scale()
            optimizer.zero_grad()
            scaler.scale(factor * (out.float() - 5).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < scale
    return skipped


def test_scalers_side_by_side_do_not_take_each_others_place():
    session, skipped = Session(Schedule(first=1, every=100), as_cuda=True), []
    with session.watching():
        skipped.append(together(64.0))
    assert skipped[0] > 24 / 4
    assert "AMP417" not in {one.code for one in session.report("loop").findings}


def in_slices(factor, *, slices=5, keeps=False):
    """Train in slices of eight steps, each with an optimizer and a scaler of its own; return how many steps are lost.

    The gradients are `factor` times as large as those of a usual loss. A scale may be kept.
    """
    torch.manual_seed(0)
    model, kept, skipped = nn.Linear(8, 1).to("cuda"), None, []
    for _ in range(slices):
        optimizer = torch.optim.SGD(model.parameters(), 1e-7)
        scaler = torch.amp.GradScaler("cuda")
        if kept is not None and keeps:
            scaler.load_state_dict(kept)
        for _ in range(8):
            with torch.autocast("cuda", torch.float16):
                out = model(torch.randn(64, 8, device="cuda"))
            loss = factor * (out.float() - 5).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped.append(scaler.get_scale() < scale)
        kept = scaler.state_dict()
    return skipped


@pytest.mark.parametrize(
    ("factor", "given", "lost"),
    [
        (64.0, {}, True),
        (64.0, {"keeps": True}, False),  # as is advised
        (64.0, {"slices": 2}, False),  # nobody knows whether there are more
        (1e-3, {}, False),
    ],
)
def test_a_scaler_that_is_new_with_its_optimizer_is_an_error_where_it_costs_many_steps(factor, given, lost):
    session, skipped = Session(Schedule(first=1, every=100), as_cuda=True), []
    with session.watching():
        skipped += in_slices(factor, **given)
    errors = [one for one in session.report("loop").findings if one.code == "AMP417"]
    assert [one.severity for one in errors] == [Severity.ERROR] * lost, skipped
    again = sum(skipped[8:])  # the first scaler has to find its scale
    assert (again > len(skipped) / 4) is (lost or given.get("slices") == 2)
    for error in errors:
        assert error.origin.line == line_of(in_slices, 'torch.amp.GradScaler("cuda")')
        assert f"{again} of {len(skipped)} steps are skipped" in error.message
