"""Casts of weights that autocast keeps over a step: the forward is the one that the old weights give."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.observe.script.state.stale_casts import StaleCasts
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def trained(way, steps=4):
    """Train in one region of autocast; return the losses, those that the weights of the moment give, and the report."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.0 if way == "not moving" else 0.5)
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    seen, right = [], []

    def forward():
        return nn.functional.cross_entropy(model(x), y)

    region = torch.autocast("cpu", torch.bfloat16, cache_enabled=way != "no cache")
    with ampcheck.watch(model, optimizer) as watching, region:
        for _ in range(steps):
            witness = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            witness.load_state_dict(model.state_dict())
            right.append(nn.functional.cross_entropy(witness(x), y).item())
            if way == "inner region":
                with torch.autocast("cpu", torch.bfloat16):
                    loss = forward()
            else:
                loss = forward()
            if way == "two forwards":
                loss = (loss + forward()) / 2
            seen.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if way == "cleared":
                torch.clear_autocast_cache()
    return seen, right, watching.report()


@pytest.mark.parametrize("way", ["plain", "inner region", "two forwards"])
def test_a_forward_with_the_weights_of_before_is_an_error_at_the_region(way):
    seen, right, report = trained(way)
    assert len(set(seen)) == 1  # nothing that the optimizer does arrives
    assert len(set(right)) == len(right)
    (error,) = [one for one in report.findings if one.severity is Severity.ERROR]
    assert error.code == "AMP419"
    assert "0.weight" in error.message
    with open(__file__, encoding="utf-8") as file:
        assert "as watching, region" in file.readlines()[error.sites[0].line - 1]
    assert not [one for one in report.findings if one.code == "AMP407"]


@pytest.mark.parametrize("way", ["cleared", "no cache", "not moving"])
def test_no_word_of_it_where_the_casts_are_those_of_the_weights(way):
    seen, right, report = trained(way)
    assert seen == pytest.approx(right, rel=0.02)
    assert not [one for one in report.findings if one.code == "AMP419"]


@pytest.mark.parametrize(
    ("around", "cache"), [("step", True), ("step", False), ("closure", True), ("half", True)]
)
def test_a_region_around_a_step_that_computes_the_loss_again(around, cache):
    torch.manual_seed(0)
    x, y = torch.randn(64, 3), torch.randn(64, 1)

    def region():
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=cache)

    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        model = model.to(torch.bfloat16) if around == "half" else model
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6)
        losses = []

        def closure():
            optimizer.zero_grad()
            with region() if around == "closure" else nullcontext():
                loss = (model(x).float() - y).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        for _ in range(3):
            with region() if around in {"step", "half"} else nullcontext():
                optimizer.step(closure)
    stale = around == "step" and cache
    if around != "half":
        assert (len(set(losses)) < len(losses)) is stale  # the same loss at other weights
    found = [one for one in session.report("script.py").findings if one.code == "AMP419"]
    assert [one.severity for one in found] == ([Severity.ERROR] if stale else [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_weight_that_is_not_a_number_is_no_other_than_its_cast(dtype):
    weight = nn.Parameter(torch.tensor([1.0, torch.nan, torch.inf]))
    cast, before = weight.to(dtype), 10**9  # a node of before the step
    assert not torch.equal(weight.to(dtype), cast)  # as NaN is never equal
    assert StaleCasts(before).among((cast,)) is None
    with torch.no_grad():
        weight[0] = 2.0
    assert StaleCasts(before).among((cast,)) is weight
