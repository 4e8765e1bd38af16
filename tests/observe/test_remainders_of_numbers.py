"""What is rounded away of several single numbers and kept aside: it belongs to any of them."""

import pytest
import torch

from ampcheck.observe.script.state.half_state import Following

STEPS = 17  # the last look was at 16


def moved(*, keeps):
    """Move three bfloat16 tensors by less than their last bits, faster and faster.

    Return how far one is off FP32, and which have lost changes.
    """
    torch.manual_seed(0)
    weights = torch.randn(64).bfloat16(), torch.full((1,), 8.0).bfloat16(), torch.full((1,), 0.34).bfloat16()
    rests = [torch.zeros_like(one) for one in weights]
    speeds = torch.randn(64) * 1e-4, torch.full((1,), 1e-5), torch.full((1,), 6e-6)
    exact = weights[2].double() + sum(range(STEPS)) * speeds[2].double()
    named = [*((f"weights.{at}", one) for at, one in enumerate(weights))]
    named += [(f"rests.{at}", one) for at, one in enumerate(rests)]
    following = Following(named)
    for step in range(STEPS):
        for weight, rest, speed in zip(weights, rests, speeds, strict=True):
            change = rest * keeps + (step * speed).bfloat16()
            before = weight.clone()
            weight.add_(change)
            rest.copy_(change - (weight - before))
        following.step_ends()
    following.judge(last=True)
    following.end()
    lost = {state.name for state in following.states if state.losses}
    return float((weights[2].double() + rests[2].double() * keeps - exact).abs() / exact), lost


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_kept_of_one_number_is_not_taken_for_anothers_alone(keeps):
    off, lost = moved(keeps=keeps)
    assert ("weights.2" in lost) is not keeps, (off, lost)
    assert (off < 1e-4) is keeps, off
