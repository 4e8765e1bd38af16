"""What one FP32 pass says about fp16 at every loss scale, against fp16 backwards that were really run."""

import math

import pytest
import torch
from prediction_study import ACTIVATIONS, ALL, WEIGHTS, Study, study
from torch import Tensor, nn
from torch.nn import functional

from ampcheck.api import check
from ampcheck.observe.step import Step
from ampcheck.values.formats import FP16
from ampcheck.values.report import low_backward
from ampcheck.values.settings import Settings

SIDE = 64
SCALES = range(0, 25, 4)
#: Exponent of the largest gradients of the chain: they do not overflow at the largest scale.
TOP = FP16.max_exponent - SCALES[-1] - 1


def weigh(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return a loss whose gradient with respect to the model's output is the second part of the batch."""
    inputs, gradients = batch
    return (model(inputs).float() * gradients).sum()


class Chain(nn.Module):
    """Every gradient inside is an incoming one, moved elsewhere and perhaps negated: none is rounded twice.

    The weight is a permutation with signs and the input the identity, so each product has one term.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIDE, SIDE, bias=False)
        signs = torch.randint(0, 2, (SIDE, 1)) * 2.0 - 1.0
        self.linear.weight.data = torch.eye(SIDE)[torch.randperm(SIDE)] * signs
        self.register_buffer("signs", torch.randint(0, 2, (SIDE,)) * 2.0 - 1.0)

    def forward(self, x: Tensor) -> Tensor:
        moved = self.linear(x)
        return moved * self.signs.to(moved.dtype)


def chain(exponents: list[int]) -> tuple[Step, Tensor]:
    """Return the chain's step and the gradients that come into it, spread over the exponents."""
    torch.manual_seed(0)
    powers = torch.tensor(exponents)[torch.randint(0, len(exponents), (SIDE, SIDE))]
    gradients = (1 + torch.rand(SIDE, SIDE)) * torch.exp2(powers.float()) * torch.randn(SIDE, SIDE).sign()
    gradients *= torch.rand(SIDE, SIDE) > 0.1
    inputs = torch.eye(SIDE, requires_grad=True)
    return Step(Chain(), (inputs, gradients), weigh), gradients


def lost_by_cast(gradients: Tensor, scale: int) -> int:
    """Count what becomes zero by really casting."""
    return int((((gradients * 2.0**scale).half() == 0) & (gradients != 0)).sum())


def test_prediction_is_exact_where_no_gradient_is_rounded_twice():
    # Magnitudes leave out every other power of two, those at which fp16's tie lies for the scales tried:
    # the bounds are then one number.
    step, gradients = chain(list(range(-44, TOP + 1, 2)))
    found = study("chain", step, SCALES)
    assert found.covered == 1.0
    for point in found.points:
        tally = point.tallies[ALL]
        places = tally.live // int(gradients.count_nonzero())
        assert places >= 3, "the product with the signs, and both products of the linear layer"
        assert tally.low == tally.high == tally.lost == places * lost_by_cast(gradients, point.log2_scale)
    shares = [point.tallies[ALL].measured for point in found.points]
    assert shares[0] > 0.4
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[3] < shares[0] / 2


def test_gradients_at_the_tie_fall_within_the_bounds():
    step, gradients = chain(list(range(-44, TOP + 1)))
    found = study("chain", step, SCALES)
    edges = 0
    for point in found.points:
        for kind in (ALL, ACTIVATIONS, WEIGHTS):
            tally = point.tallies[kind]
            assert tally.low <= tally.lost <= tally.high
            edges += tally.low < tally.high
        assert point.tallies[WEIGHTS].lost == lost_by_cast(gradients, point.log2_scale)
    assert edges > 6


def test_a_prediction_one_binade_off_would_be_noticed():
    step, _ = chain(list(range(-44, TOP + 1)))
    found = study("chain", step, SCALES)
    for point in found.points[:4]:
        lost = point.tallies[ALL].lost
        assert not any(
            found.curves[ALL][point.log2_scale + off].low
            <= lost
            <= found.curves[ALL][point.log2_scale + off].high
            for off in (2, -2)
            if point.log2_scale + off in found.curves[ALL]
        )


def perceptron() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    labels = torch.randint(0, 10, (128,))
    return Step(
        model, torch.randn(128, 32), lambda model, x: functional.cross_entropy(model(x), labels) * 2.0**-12
    )


def convolutions() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
        ),
        *(nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)),
    )
    labels = torch.randint(0, 5, (8,))
    return Step(
        model,
        torch.randn(8, 3, 12, 12),
        lambda model, x: functional.cross_entropy(model(x), labels) * 2.0**-9,
    )


@pytest.mark.parametrize("build", [perceptron, convolutions])
def test_prediction_of_small_networks_is_right_to_one_binade(build):
    """The tolerance has no number of its own.

    Rounding on the way moves a gradient by less than a factor of two, so at most those within one binade of
    the cut change sides: the measured count lies between the predictions for half and for twice the scale.
    Sums that cancel are the exception: below epsilon times their terms they are noise in either precision,
    which happens to about as many as epsilon says.
    """
    found = study(build.__name__, build(), SCALES)
    assert found.covered == 1.0
    assert found.mixed == 0.0
    start = found.points[0].tallies[ALL]
    assert start.measured > 0.05, "nothing is lost, so nothing is tested"
    for point in found.points:
        if not point.overflowed:
            assert_within_a_binade(found, point.log2_scale, point.tallies[ALL].lost)


def assert_within_a_binade(found: Study, scale: int, lost: int) -> None:
    curve = found.curves[ALL]
    above, below = curve.get(scale + 1, curve[scale]), curve.get(scale - 1)
    noise = FP16.epsilon * curve[scale].live
    assert above.low - noise <= lost
    if below is not None:
        assert lost <= below.high + noise


def test_overflow_is_predicted_where_it_happens():
    step, gradients = chain(list(range(-20, 1)))
    found = study("chain", step, range(25))
    peak = float(gradients.abs().max())
    for point in found.points:
        over = FP16.overflows(peak * math.ldexp(1.0, point.log2_scale))
        assert point.overflowed is over
        assert point.predicted_overflow is over
    assert any(point.overflowed for point in found.points)


class TwoPrecisions(nn.Module):
    """One line multiplies in fp16 and in FP32; only what it does in fp16 can underflow there."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return sum(
            (part * part).float().sum() * weight for part, weight in ((self.linear(x), 1.0), (x, 1e-9))
        )


def test_the_part_of_a_line_that_stays_in_fp32_is_not_predicted_to_flush():
    torch.manual_seed(0)
    model, x = TwoPrecisions(), torch.randn(64, 16, requires_grad=True)
    report = check(model, x, lambda m, b: m(b), settings=Settings(log2_scale=0, verify=False))
    line = [stats for site, stats in low_backward(report).items() if site.op == "mul"]
    assert sum(stats.numel for stats in line) < sum(
        stats.numel
        for site, stats in report.reference.sites.items()
        if site.op == "mul" and site.phase == "backward"
    )
    assert sum(stats.underflowed(FP16).low for stats in line) == 0  # the gradients of 1e-9 are FP32's
