"""Which parts of a gradient are judged by themselves."""

import pytest
import torch

from ampcheck.fix.verify import comparison
from ampcheck.values.outcome import FAINT, PART_FLOOR
from ampcheck.values.parts import (
    but_for_noise,
    by_chance,
    dead_parts,
    faint_parts,
    harmed_parts,
    off_by_itself,
    outcome_of,
)

LARGE = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
SMALL = torch.randn(64, generator=torch.Generator().manual_seed(1), dtype=torch.float64).float()


def rows(share, seen):
    """Return the comparisons of a large part that is right and of a small one that `seen` makes of its gradient."""
    small = SMALL / SMALL.norm() * LARGE.norm() * share
    return {
        "body.weight": comparison(LARGE, LARGE, 0).tolist(),
        "head.weight": comparison(small, seen(small), 0).tolist(),
    }


def turned(grad):
    return -grad


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize("share", [1e-9, 2 * FAINT])
def test_what_is_lost_of_faint_noise_is_no_underflow(share, noise):
    """As of gradients in front of a settled softmax. What rounded weights leave as it is is no noise."""
    found = rows(share, torch.zeros_like)
    rounded = rows(share, turned if noise else torch.clone)
    lost = outcome_of(found, 0.0, 0.0, 0).underflow
    assert lost == pytest.approx(found["head.weight"][4] / sum(row[4] for row in found.values()))
    kept = outcome_of(but_for_noise(found, rounded), 0.0, 0.0, 0).underflow
    assert kept == (0.0 if noise and share < FAINT else lost)
    assert outcome_of(but_for_noise(found, {}), 0.0, 0.0, 0).underflow == lost


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_faint_part_is_less_than_rounding_the_others_to_half_precision_changes(dtype):
    assert (LARGE.to(dtype).float() - LARGE).norm() > FAINT * LARGE.norm()


@pytest.mark.parametrize(
    ("share", "judge", "other"),
    [(2 * FAINT, harmed_parts, faint_parts), (FAINT / 2, faint_parts, harmed_parts)],
)
def test_a_part_that_is_off_is_harmed_or_faint_by_its_share(share, judge, other):
    found = rows(share, turned)
    assert judge(found, {}) == {"head": pytest.approx(2.0)}
    assert not other(found, {})
    assert not judge(found, found)  # rounded weights explain it
    assert off_by_itself(found)
    assert not dead_parts(found)


@pytest.mark.parametrize(
    ("share", "judged"), [(FAINT / 2, True), (2 * PART_FLOOR, True), (PART_FLOOR / 2, False)]
)
def test_a_part_that_is_dead_counts_as_long_as_fp32_holds_it(share, judged):
    found = rows(share, torch.zeros_like)
    expected = {"head": pytest.approx(1.0)} if judged else {}
    assert dead_parts(found) == harmed_parts(found, {}) == expected
    assert not faint_parts(found, {})


@pytest.mark.parametrize(("rounded", "counts"), [(lambda grad: 1.01 * grad, True), (turned, False)])
def test_a_dead_part_however_small_may_matter_where_rounding_does_not_move_it(rounded, counts):
    """Adam divides it by its own size. Where terms cancel, rounded weights give another rest."""
    found, known = rows(PART_FLOOR / 100, torch.zeros_like), rows(PART_FLOOR / 100, rounded)
    assert faint_parts(found, known) == ({"head": pytest.approx(1.0)} if counts else {})
    assert not harmed_parts(found, known)
    assert off_by_itself(found)  # so that rounded weights are tried
    moved = rows(PART_FLOOR / 100, turned)
    assert not faint_parts(moved, known)  # it is not dead
    assert not off_by_itself(moved)


def inside(share, seen, rounded):
    """Return the comparisons of a gate beside a weight of its module, and the same with rounded weights."""
    gate = SMALL / SMALL.norm() * LARGE.norm() * share
    found, known = (
        {
            "body.weight": comparison(LARGE, LARGE, 0).tolist(),
            "body.gate": comparison(gate, grad(gate), 0).tolist(),
        }
        for grad in (seen, rounded)
    )
    return found, known


@pytest.mark.parametrize("share", [2 * FAINT, 2 * PART_FLOOR])
def test_a_parameter_that_is_dead_is_not_hidden_by_the_others_of_its_module(share):
    found, known = inside(share, torch.zeros_like, torch.Tensor.half)
    assert harmed_parts(found, known) == {"body.gate": pytest.approx(1.0)}
    assert off_by_itself(found)
    assert not harmed_parts(found, {})  # whether it is noise is not known


def test_a_parameter_whose_gradient_is_noise_is_judged_with_its_module():
    """The bias in front of a normalisation has no gradient but rounding: rounded weights turn it about."""
    found, known = inside(2 * FAINT, torch.zeros_like, turned)
    assert off_by_itself(found)
    assert not harmed_parts(found, known)


@pytest.mark.parametrize(("seen", "counts"), [(torch.zeros_like, True), (turned, False)])
def test_a_parameter_is_judged_by_itself_only_where_it_became_zero(seen, counts):
    """A sum that cancels may be far off, and close with rounded weights by luck."""
    number = LARGE.norm()[None] * 2 * FAINT
    found = {
        "body.weight": comparison(LARGE, LARGE, 0).tolist(),
        "body.step": comparison(number, seen(number), 0).tolist(),
    }
    known = {
        name: comparison(one, one, 0).tolist()
        for name, one in (("body.weight", LARGE), ("body.step", number))
    }
    assert harmed_parts(found, known) == ({"body.step": pytest.approx(1.0)} if counts else {})


@pytest.mark.parametrize("size", [1, 64])
@pytest.mark.parametrize("always", [False, True])
def test_one_number_is_off_by_chance_where_it_is_right_over_all_steps(size, always):
    """A temperature's gradient crosses zero: there rounding is as large as it is itself."""
    wide = torch.linspace(-1.0, 1.0, 21).double() * 0.1 + 0.003
    error = 0.5 * wide if always else torch.full_like(wide, 0.002)
    steps = [
        {"scale.value": comparison(one.repeat(size).float(), (one + off).repeat(size).float(), 0).tolist()}
        for one, off in zip(wide, error, strict=True)
    ]
    alone = [name for rows in steps for name in harmed_parts(rows, {})]
    assert alone == ["scale"] * len(alone)
    assert alone
    total = float(error.norm() / wide.norm())
    assert (total > 0.25) is always
    assert by_chance(steps) == (frozenset() if always or size > 1 else {"scale"})
    assert not by_chance(steps[:1])
