"""What half precision keeps of the changes to a tensor, beside what FP32 has there."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ampcheck.observe.statistics.units import unit_of
from ampcheck.values.trace import UpdateLoss

#: A change counts from so many units in the last place on, and from this part of the number. An average with decay 0.9
#: may stand still 5 of them away from the truth, 10 where it is rounded twice: twice as many where each number counts.
UNITS, SHARE = 8, 2.0**-7
#: Of a change in FP32, what half precision may lose; and how many times as far it may go.
LOST, TOO_FAR = 0.75, 2.0
KEPT_AT_LEAST = 1.0 - LOST
#: Of the elements that FP32 moves far enough, the part that may lose so much before updates count as lost.
MOST_LOST = 0.5
#: Of the elements that FP32 has moved far enough, the part that may lose so much where half precision keeps a state.
KEPT = 0.1
#: Of a remainder of rounding, the part that lies within half a unit, and how much of a unit it is on average at least.
MOST_WITHIN, REMAINS, HALF_UNIT = 0.99, 0.05, 0.5
#: In units in the last place, what is further than an average is off that moves on later.
VERY_FAR = 64
#: Tensors up to this size are judged number by number: each counts or measures something of its own.
FEW_NUMBERS = 16

#: Steps that a second copy runs beside the first one.
LONG_ENOUGH = 64
#: Of a unit, a change that shows in any case.
_SEEN = 1.5
#: Of the largest number, what is near it.
_NEAR = 2.0**-3
#: Units on average that FP32 has moved a state that lasts, in so many steps that write it, and what it kept of that.
_MOVED, _WRITTEN, _HALF = 2.0, 16, 0.5
#: What it keeps at least of what is added up where nothing is forgotten, or of a very long way.
_MOST_OF = 0.75
#: As many writes, where a loop of the script's own goes on within one of these steps.
OFTEN_WRITTEN = 64


@dataclass(slots=True)
class State:
    """A tensor that is followed."""

    tensor: weakref.ref[torch.Tensor]
    name: str
    first: torch.Tensor  #: its numbers when that began
    version: int
    writes: int = 0  #: that were seen
    missed: bool = False  #: others were not, or nobody knows what they do
    done: bool = False
    fine: bool = False  #: what FP32 changes, half precision changes too
    kept: bool = False  #: and it was enough to tell: not all that FP32 changes is small
    fine_here: bool = False  #: as it was when that was looked at last, since it is followed
    rounds: int = 0  #: steps that wrote it
    began: tuple[torch.Tensor, int] | None = (
        None  #: what it remembered after the first of them, and when that was
    )
    counted: int = 0  #: its writes at the end of the last of them
    forgets: bool = False  #: each step that writes it writes all of it anew
    before: torch.Tensor | None = None  #: how far FP32 had come when that was looked at last
    lasts: bool = (
        False  #: what it holds stays there for as long as it is followed: nothing makes up for a loss
    )
    pace: torch.Tensor | None = None  #: how far FP32 moves it in a step that writes it
    place: tuple[str, int] = ("", 0)  #: of its first write
    losses: tuple[UpdateLoss, ...] = ()
    #: Of a state of an optimizer of the script's own: what its zeros do to that is judged where it is stepped.
    parameter: weakref.ref[torch.Tensor] | None = None
    stepped: bool = False  #: it is a parameter, which an optimizer of the script's own steps
    read: bool = False  #: something is computed from it
    underflows: bool = False  #: what changes it has become zero in float16
    perhaps: bool = False  #: it is new, and no state unless another takes its place
    overflown: bool = False  #: numbers that were near the largest one have become infinite

    @property
    def role(self) -> tuple[str, torch.dtype, torch.Size]:
        """Return what another tensor must have in common with it to take its place."""
        return self.name, self.first.dtype, self.first.shape

    @property
    def judged(self) -> bool:
        """Tell whether it is known what half precision makes of its changes."""
        return bool(self.losses) or (self.fine and not self.overflown)

    def becomes_infinite(self) -> None:
        """Take note of numbers that have grown too large since: they were near the largest one, and FP32 holds more.

        A sum that is only shown harms nothing: it stays unjudged.
        """
        tensor = self.tensor()
        if tensor is None or self.losses or tensor.shape != self.first.shape:
            return
        near = self.first.isfinite() & (self.first.abs() >= _NEAR * torch.finfo(tensor.dtype).max)
        if bad := int((near & tensor.detach().isinf()).sum()):
            self.overflown = True
            if self.read:
                self.losses = (UpdateLoss(self.name, tensor.numel(), 0, bad, *self.place, infinite=bad),)

    def outgrown(self) -> bool:
        """Tell whether its units have grown since, and its changes are no more than a few: they may be lost now."""
        tensor = self.tensor()
        if tensor is None or self.losses or tensor.shape != self.first.shape:
            return False
        unit = unit_of(tensor.detach())
        grown = unit > unit_of(self.first)
        if self.pace is not None:
            grown &= self.pace < UNITS / 2 * unit
        return bool(grown.sum() * 2 > tensor.numel())


def need_of(tensor: torch.Tensor) -> int:
    """Return from how many units on a change counts: each number of a small tensor counts by itself."""
    return (2 if tensor.numel() <= FEW_NUMBERS else 1) * UNITS


def compare(
    state: State, tensor: torch.Tensor, wide: torch.Tensor, still: torch.Tensor, *, last: bool
) -> None:
    """Compare a tensor with FP32's, as far as that has moved; some of it stands `still`."""
    if tensor.shape != state.first.shape:
        state.missed = True
        return
    first, unit = state.first.float(), unit_of(state.first)
    few, empty = tensor.numel() <= FEW_NUMBERS, (tensor == 0) & (first == 0)
    intended, kept = wide.float() - first, tensor.float() - first
    size, changes = intended.abs(), (intended != 0) & intended.isfinite()
    state.pace = size / max(1, state.rounds)
    enough = torch.maximum(need_of(tensor) * unit, SHARE * first.abs())
    if state.parameter is not None:
        changes, empty = changes & ~empty, torch.zeros_like(empty)
    still = still & changes & (kept == 0)
    # What is near 0 may halve.
    moved = changes & (size >= torch.minimum(enough, (first.abs() / 2).clamp_min(unit))) | still
    wrong = ~kept.isfinite() | (kept.abs() > TOO_FAR * size)
    short = ~wrong & ((intended - kept).abs() > LOST * size)
    little = changes & (size >= UNITS / 2 * unit)
    # What moves furthest, as the counts of what comes often, may be few of many elements.
    most = moved & (size >= torch.maximum(_usual(size, changes), VERY_FAR * unit))
    kinds = [
        changes,
        moved,
        moved & short,
        moved & wrong,
        little,
        little & (wrong | ((intended - kept).abs() > size / 2)),
        most,
        most & short,
        most & wrong,
    ]
    counts = torch.stack([one.sum() for one in kinds]).tolist()
    changed, _, lost, off, moved_a_little, lost_of_it, *_ = counts
    ways = (intended.where(changes, 0.0), kept, unit)
    behind = not few and _is_behind(state, changed, moved_a_little, ways)
    if few and lost + off:
        state.losses = tuple(_number_by_number(state, *kinds[1:4]))
    elif found := _lost(state, counts, ways, behind=behind):
        state.losses = found
    elif (zeros := int((empty & changes).sum())) > MOST_LOST * tensor.numel():
        # They are smaller than half precision holds.
        state.losses = (UpdateLoss(state.name, changed, zeros, 0, *state.place),)
    enough_moved = 2 * moved_a_little >= changed > 0
    right = (
        (enough_moved or (last and (state.fine or (state.writes > 0 and not changed))))
        and lost_of_it <= KEPT * moved_a_little
        and not (state.losses or behind)
    )
    # A cast of what is kept in FP32, as of master weights, is what FP32 has, rounded once.
    right |= state.forgets and bool(changed) and torch.equal(tensor, wide.to(tensor.dtype))
    there = state.rounds >= LONG_ENOUGH and not state.losses and _where_fp32_is(state, tensor, intended)
    stays_near = state.kept and not (state.losses or enough_moved) and _is_near(state, tensor, wide)
    state.kept = (right and (enough_moved or state.kept)) or there or stays_near
    # What is rounded away shows in the long run.
    state.done, state.fine, state.fine_here = bool(state.losses) or (state.fine_here and right), right, right


def _lost(
    state: State, counts: list[int], ways: tuple[torch.Tensor, ...], *, behind: bool
) -> tuple[UpdateLoss, ...]:
    """Return what was lost of those numbers that moved far, of those that moved furthest, or of all together."""
    changed, far, lost, off, _, _, furthest, lost_of_them, off_of_them = counts
    if lost + off > MOST_LOST * far and 2 * far >= changed:
        return (UpdateLoss(state.name, far, lost, off, *state.place),)
    if lost_of_them + off_of_them > MOST_LOST * furthest:
        return (UpdateLoss(state.name, furthest, lost_of_them, off_of_them, *state.place),)
    if behind:
        moved, short = short_of(ways[0], ways[1], _part(state, ways))
        return (UpdateLoss(state.name, moved, short, 0, *state.place),) if 2 * short > moved else ()
    ahead = _ahead(state, ways)
    return (UpdateLoss(state.name, changed, 0, ahead, *state.place),) if 2 * ahead > changed else ()


def _ahead(state: State, ways: tuple[torch.Tensor, ...]) -> int:
    """Return how many numbers of a state that lasts have gone much further than FP32's; 0 unless all together have."""
    intended, kept, unit = ways
    if not state.lasts or state.rounds < _WRITTEN or intended.numel() <= FEW_NUMBERS:
        return 0
    units, way, gone = (intended / unit).square().mean(), intended.square().sum(), (intended * kept).sum()
    if not (units >= _MOVED**2 and gone * _MOST_OF > way):
        return 0
    return int((kept * intended.sign() * _MOST_OF > intended.abs()).sum())


def _is_behind(state: State, changed: int, some: int, ways: tuple[torch.Tensor, ...]) -> bool:
    """Tell whether all numbers together are behind FP32's, where `some` of those that `changed` moved by some units.

    What forgets may be some units behind, and follows from there; near 0 it moves by many, however little that is.
    """
    often = state.rounds >= _WRITTEN or state.writes >= OFTEN_WRITTEN
    far_enough = state.lasts or 2 * some >= changed
    units = _MOVED if state.lasts else 2 * UNITS
    return often and far_enough and falls_behind(*ways, moved=units, part=_part(state, ways))


def _part(state: State, ways: tuple[torch.Tensor, ...]) -> float:
    """Return the part of FP32's way that numbers have to go: more where they forget nothing, or it is very far."""
    intended, _, unit = ways
    far = state.lasts or bool((intended.abs() / unit).median() >= VERY_FAR)
    return _MOST_OF if far else _HALF


def falls_behind(
    intended: torch.Tensor,
    kept: torch.Tensor,
    unit: torch.Tensor,
    *,
    moved: float = _MOVED,
    part: float = _HALF,
) -> bool:
    """Tell whether many numbers have gone less than a part of the way together, however far each of them has come.

    They have to have `moved` by so many units in FP32.
    """
    if intended.numel() <= FEW_NUMBERS:
        return False
    units, way, gone = (intended / unit).square().mean(), intended.square().sum(), (intended * kept).sum()
    return bool((units >= moved**2) & (gone < part * way))


def short_of(intended: torch.Tensor, kept: torch.Tensor, part: float = _HALF) -> tuple[int, int]:
    """Return how many numbers FP32 moves, and how many of them get less than a part of their way.

    Where those are not most of all, they are most of the numbers that move furthest.
    """
    size = intended.abs()
    short, moves = kept * intended.sign() < part * size, size > 0
    moved, lost = int(moves.sum()), int((moves & short).sum())
    if 2 * lost > moved:
        return moved, lost
    furthest = moves & (size >= _usual(size, moves))
    return int(furthest.sum()), int((furthest & short).sum())


def _where_fp32_is(state: State, tensor: torch.Tensor, way: torch.Tensor) -> bool:
    """Tell whether numbers are where FP32 has them: what moved by more than rounding is not off by more than that."""
    unit, went = unit_of(state.first), tensor.float() - state.first.float()
    seen = way.isfinite() & (way.abs() >= _SEEN * unit)
    off = seen & ((went == 0) | ((way - went).abs() > torch.maximum(unit, unit_of(tensor))))
    changed, far, wrong = torch.stack([one.sum() for one in (way != 0, seen, off)]).tolist()
    return bool(far >= KEPT * changed > 0 and wrong <= KEPT * far)


def _is_near(state: State, tensor: torch.Tensor, wide: torch.Tensor) -> bool:
    """Tell whether what forgets is within a few units of FP32's numbers, as an average is that has arrived."""
    units = (wide.float() - tensor.float()).abs() / unit_of(tensor)
    return not state.lasts and bool((units > UNITS / 2).float().mean() <= KEPT)


def _usual(size: torch.Tensor, changes: torch.Tensor) -> torch.Tensor:
    """Return the root of the mean square of the changes."""
    return (size.where(changes, 0.0).square().sum() / changes.sum().clamp_min(1)).sqrt()


def _number_by_number(
    state: State, moved: torch.Tensor, stuck: torch.Tensor, wrong: torch.Tensor
) -> Iterator[UpdateLoss]:
    """Yield what was lost of each number of a small tensor."""
    rows = torch.stack([one.flatten() for one in (moved, stuck, wrong)]).int().t().tolist()
    for at, (far, lost, off) in enumerate(rows):
        if lost or off:
            name = state.name if len(rows) == 1 else f"{state.name}[{at}]"
            yield UpdateLoss(name, far, lost, off, *state.place)


def is_remainder(tensor: torch.Tensor, whole: torch.Tensor, *, one_of_them: bool = False) -> bool:
    """Tell whether a tensor holds what was rounded away of another: both signs, half a unit of the other at most.

    It may be known to be `one_of_them`: then a few numbers of one sign are a remainder, too.
    """
    units = tensor.float() / unit_of(whole)
    if one_of_them and bool((units.abs() <= HALF_UNIT).all()):
        return True
    signs = float((units < 0).float().mean())
    within = float((units.abs() <= HALF_UNIT).float().mean())
    return within > MOST_WITHIN and float(units.abs().mean()) > REMAINS and REMAINS < signs < 1.0 - REMAINS


def makes_up(tensor: torch.Tensor, rest: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Tell of each number whether what is kept aside of it is what it lacks: then it is added some time."""
    lacks = wide.float() - tensor.float()
    return (lacks - rest.float()).abs() <= torch.maximum(lacks.abs() / 2, unit_of(tensor) / 8)
