"""Casts of weights that autocast keeps over a step: the forward is the one that the old weights give."""

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.values.findings import Severity


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
