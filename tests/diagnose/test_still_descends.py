"""A gradient that rounding in the backward moved a little still goes down: a warning, not an error."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from judge import step
from torch import nn
from torch.nn import functional

from ampcheck.diagnose.rules import diagnose
from ampcheck.diagnose.rules.rounding import _descent
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import HARM_ERROR, STILL_DESCENDS
from ampcheck.values.settings import Settings
from ampcheck.values.verdict import Health


def made(common, seed=2, own=0.1, *, bias=True):
    """Return a head whose rows are nearly equal: what it sends back is a small difference, as in settled networks."""
    torch.manual_seed(seed)
    head = nn.Linear(32, 4, bias=bias)
    with torch.no_grad():
        head.weight.mul_(own).add_(common * torch.randn(32))
        if bias:
            head.bias.zero_()
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), head)
    return model, (torch.randn(4, 8), torch.arange(4)), loss


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def audited(common, *given, **how):
    model, batch, _ = made(common, *given, **how)
    return audit(Target("settled", model, [batch], loss), Settings("bf16"))


def lowered(common, gradients, length):
    """Return by how much a step along gradients lowers the FP32 loss."""
    model, batch, _ = made(common)
    norm = math.sqrt(sum(float(one.square().sum()) for one in gradients.values()))
    model.double()
    batch = (batch[0].double(), batch[1])
    before = loss(model, batch)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.sub_(gradients[name], alpha=length / norm)
    return float((before - loss(model, batch)).detach())


@given(st.floats(0.01, 0.99), st.integers(0, 1000))
def test_no_error_of_a_size_turns_a_gradient_by_more(size, seed):
    draw = torch.Generator().manual_seed(seed)
    gradient, error = torch.randn(2, 5, generator=draw, dtype=torch.float64)
    off = gradient + error * size * gradient.norm() / error.norm()
    assert torch.cosine_similarity(gradient, off, dim=0) >= _descent(size) - 1e-9


def test_the_limit_is_where_a_step_loses_as_much_as_counts_as_harm():
    assert _descent(STILL_DESCENDS) == pytest.approx(1 - HARM_ERROR)


def test_a_small_error_of_the_backward_is_a_warning_and_the_step_goes_down_as_far_as_it_says():
    report = audited(6)
    (found,) = (one for one in report.findings if one.code == "AMP501")
    settled = report.outcomes["settled"]
    assert HARM_ERROR < settled.worst < STILL_DESCENDS
    assert found.severity is Severity.WARNING
    assert report.verdict.word is Health.RISK
    assert "did not test" not in report.verdict.sentence  # rounded weights were tried
    assert (
        f"still lowers the loss by at least {_descent(settled.grad_error):.0%}".replace("%", " %")
        in found.message
    )

    wide, low = (step(lambda: made(6), dtype, 0).grads for dtype in (None, torch.bfloat16))
    assert lowered(6, low, 1e-4) >= _descent(settled.grad_error) * lowered(6, wide, 1e-4) > 0


def with_errors(report, whole, place):
    """Return where a report places an error, and what is found with other errors, there and of all gradients."""
    origin = next(one for one in report.findings if one.code == "AMP501").origin
    times = (place / report.errors[origin].relative_rms) ** 2
    errors = {
        site: replace(pair, error_squares=pair.error_squares * times) for site, pair in report.errors.items()
    }
    settled = replace(report.outcomes["settled"], grad_error=whole)
    outcomes = {**report.outcomes, "settled": settled}
    found = diagnose(replace(report, outcomes=outcomes, errors=errors))
    return origin, next(one for one in found if one.code == "AMP501")


@pytest.mark.parametrize(
    ("whole", "place", "severity"),
    [
        (0.23, 0.43, Severity.WARNING),
        (0.23, 0.54, Severity.ERROR),  # what goes back from there is garbage, however small it is
        (0.54, 0.43, Severity.ERROR),
    ],
)
def test_from_the_limit_on_it_is_an_error(whole, place, severity):
    report = audited(12, 5, 0.3, bias=False)
    assert report.verdict.word is Health.UNSAFE  # as it is, half of what goes back is lost
    origin, found = with_errors(report, whole, place)
    assert origin.op == "native_layer_norm_backward"
    assert found.severity is severity


def test_a_sum_that_is_the_gradient_of_a_bias_sends_nothing_back():
    origin, found = with_errors(audited(6), 0.23, 0.9)
    assert (origin.op, origin.module) == ("sum", "2")
    assert found.severity is Severity.WARNING
