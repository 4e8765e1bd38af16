"""What stands still, known before FP32 is far away: how long a state remembers, and how it moves in FP32.

An average that forgets quickly may stand still a little away from the truth, and no further. One that forgets a part r
of itself in each step stands still until the truth is 1/(2r) units in the last place away; a counter does for ever.
"""

import torch

from ampcheck.observe.script.state.half_judged import OFTEN_WRITTEN, State, need_of
from ampcheck.observe.statistics.units import unit_of

#: Steps within which a state would have come far enough at its pace.
_SOON = 512
#: How much further it has come in twice the time: where it moves in one direction, and where ever faster.
_STEADY, _FASTER = 1.5, 2.5
#: Of a state, what counts as nothing forgotten in all, and of a unit, as nothing moved.
_NOTHING = 1e-3
#: A second copy begins this far off, as a part of the largest number.
_BESIDE = 2.0**-6
#: Of a unit, a change that is kept.
_KEPT = 0.5
#: What a state may forget within those steps and still last, and what it has to remember at first.
_HALF, _SOME = 0.5, 0.25


def beside_of(tensor: torch.Tensor) -> float:
    """Return how far off the second copy of a tensor begins."""
    largest = float(tensor.detach().abs().amax()) if tensor.numel() else 0.0
    return _BESIDE * largest if 0.0 < largest < float("inf") else 1.0


def stays(state: State, wide: torch.Tensor, probe: torch.Tensor | None, steps: int) -> torch.Tensor:
    """Tell of each number whether no change to it will be kept until FP32 is as far away as counts.

    `probe` is the second copy, which began beside it. Not before it was written as many times as it has to move units.
    It is taken for an average that forgets a part r of itself each time. Of something that stays where it is: changes
    of less than half a unit, c, get no larger, and FP32 ends c/r units away. Of something that moves by d units each
    time: this is 1/(2r) units away after 1/(2rd) times, when the first change is kept; and FP32 has come
    (d/r) (y - 1 + exp(-y)) units far after y/r times. That must be twice as far as needed.
    """
    nothing = torch.zeros_like(wide, dtype=torch.bool)
    if probe is None or probe.shape != state.first.shape:
        return nothing
    way = wide.float() - state.first.float()
    left = (probe.float() - wide.float()) / beside_of(state.first)
    before, state.before, rounds = state.before, way, state.rounds
    state.forgets = rounds > 0 and not bool(left.any())
    often = rounds > 1 or state.writes >= OFTEN_WRITTEN
    first, since = state.began or (torch.ones_like(left), 0)
    forgot = (1.0 - left / first).clamp_min(0.0).mean()
    state.lasts = often and bool(forgot * _SOON < _HALF * (steps - since))
    if state.began is None and rounds and bool((left > _SOME).all()):
        state.began = left, steps  # some of what it is made of may have been there before it was followed
    need = need_of(state.first)
    if before is None or before.shape != way.shape or rounds < need:
        return nothing
    units = way.abs() / unit_of(state.first)
    forgets = (1.0 - left.clamp(0.0, 1.0) ** (1.0 / rounds)).clamp_min(_NOTHING / rounds)
    moves = units * forgets / _behind(rounds * forgets)
    first_kept = moves / forgets * _behind(_KEPT / moves.clamp_min(_NOTHING))
    change, further, later = units / rounds, way / before, _SOON / steps
    faster = further >= _FASTER
    first_kept = torch.where(~faster & (change < _KEPT), change / forgets, first_kept)
    soon = units * torch.where(faster, later**2, later) >= need
    return (further >= _STEADY) & (first_kept >= 2 * need) & soon


def _behind(y: torch.Tensor) -> torch.Tensor:
    return y + torch.expm1(-y)
