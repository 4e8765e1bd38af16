"""What the comparisons of single gradients come to: for the whole step, and for the parts of a model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import NamedTuple

from ampcheck.values.outcome import (
    DEAD_SHARE,
    FAINT,
    HARM_ERROR,
    MAGNIFIES,
    MOVES_NOTHING,
    PART_ERROR,
    PART_FLOOR,
    Outcome,
)

#: Error of a parameter's gradient with rounded weights below which it is more than noise.
STEADY = 0.1

#: A part of so many numbers may be far off in one step by chance.
FEW_NUMBERS = 4

#: By parameter: energies of the error and of FP32's gradient, new non-finites, elements lost, and those that matter.
Rows = Mapping[str, Sequence[float]]


def outcome_of(rows: Rows, value: float, reference: float, log2_scale: int) -> Outcome:
    """Return what a run came to: its gradients' comparisons by parameter, its loss and the FP32 loss."""
    rows, names = _that_move(rows), list(rows)
    error, norm, bad, lost, live = zip(*rows.values(), strict=True) if rows else ((), (), (), (), ())
    finite, known = value - value == 0.0, reference - reference == 0.0
    off = abs(value - reference) / max(abs(reference), 1e-12) if finite else float("inf")
    return Outcome(
        log2_scale,
        loss=value,
        loss_error=off if known else 0.0,
        loss_nonfinite=not finite and known,
        grads_nonfinite=tuple(name for name, count in zip(names, bad, strict=True) if count),
        grad_error=_ratio(sum(error), sum(norm)) ** 0.5,
        underflow=_ratio(sum(lost), sum(live)),
        underflow_by={name: a / b for name, a, b in zip(names, lost, live, strict=True) if a},
        off=tuple(
            name
            for name, a, b in zip(names, error, norm, strict=True)
            if not a <= HARM_ERROR**2 * b  # NaN is off too
        ),
    )


def _that_move(rows: Rows) -> Rows:
    """Return the comparisons; where FP32's gradient would move no weight either, without its errors and losses."""
    total = sum(norm for _, norm, *_ in rows.values())
    if not 0.0 < total < MOVES_NOTHING**2:
        return rows
    return {name: (0.0, norm, bad, 0.0, live) for name, (_, norm, bad, _, live) in rows.items()}


def but_for_noise(rows: Rows, rounded: Rows) -> Rows:
    """Return the comparisons without what is lost of faint gradients that rounded weights alone turn: those are noise.

    Such are the gradients in front of a softmax that is settled.
    """
    whole = sum(norm for _, norm, *_ in rows.values())
    noise = {
        name
        for name, (error, norm, *_) in rounded.items()
        if name in rows and rows[name][1] <= FAINT**2 * whole and not error <= HARM_ERROR**2 * norm
    }
    return {name: (*row[:3], 0.0, row[4]) if name in noise else row for name, row in rows.items()}


def dead_parts(rows: Rows) -> dict[str, float]:
    """Return the error of each module most of whose gradient became zero: no rounding explains that."""
    large = {name: part for name, part in _parts(rows).items() if part.share > PART_FLOOR}
    return {name: part.error for name, part in large.items() if part.dead and part.error > DEAD_SHARE}


def harmed_parts(rows: Rows, rounded: Rows) -> dict[str, float]:
    """Return the parts that are far off, and further than rounded weights explain where these were tried."""
    return {name: part.error for name, part in _off(rows, rounded) if not part.faint}


def faint_parts(rows: Rows, rounded: Rows) -> dict[str, float]:
    """Return the parts that are as far off, and so small beside the others that it may do no harm."""
    return {name: part.error for name, part in _off(rows, rounded) if part.faint}


def by_chance(steps: Sequence[Rows]) -> frozenset[str]:
    """Return the parts of a few numbers that are right over all of some steps, however far off they are in one.

    The gradient of a temperature or a gate is one number that changes its sign now and then: near zero it is rounding.
    """
    by_part: dict[str, list[Sequence[float]]] = {}
    for rows in steps:
        for name, row in _sums(rows).items():
            by_part.setdefault(name, []).append(row)
    few = {
        name: [sum(column) for column in zip(*found, strict=True)]
        for name, found in by_part.items()
        if len(found) > 1 and max(row[4] for row in found) <= FEW_NUMBERS
    }
    return frozenset(name for name, (error, norm, *_) in few.items() if error <= PART_ERROR**2 * norm)


def off_by_itself(rows: Rows) -> bool:
    """Tell whether a part is far off, whatever rounded weights explain."""
    exact = {name: (0.0, *row[1:]) for name, row in rows.items()}
    return any(True for _ in _off(rows, exact))


def largest_error(rows: Rows) -> float:
    """Return the error of the part that is furthest off, among those that matter."""
    return max((part.error for part in _parts(rows).values() if not part.faint), default=0.0)


class _Part(NamedTuple):
    """What became of a module's own gradient."""

    error: float
    share: float  #: of the norm of all gradients
    dead: bool  #: most of it became zero

    @property
    def faint(self) -> bool:
        """Whether it is so small beside the others that it may not matter."""
        return self.share <= (PART_FLOOR if self.dead else FAINT)


def _off(rows: Rows, rounded: Rows) -> Iterator[tuple[str, _Part]]:
    known, modules = _parts(rounded), set()
    for name, part in _parts(rows).items():
        baseline = known.get(name)
        steady = part.dead and baseline is not None and baseline.error < STEADY
        if not (part.share > PART_FLOOR or steady):
            continue  # what is left where terms cancel: rounding, in FP32 as well
        if part.error > max(PART_ERROR, MAGNIFIES * baseline.error if baseline is not None else 0.0):
            modules.add(name)
            yield name, part
    moving = {name: one.error for name, one in _parameters(rounded).items() if one.error < STEADY}
    for name, part in _parameters(rows).items():
        known_to_move = name in moving and name.rpartition(".")[0] not in modules
        if known_to_move and part.dead and part.error > PART_ERROR:
            yield name, part


def _parameters(rows: Rows) -> dict[str, _Part]:
    """Return the parameters that share a module with others, which may hide that one of them does not learn.

    Only what is dead is judged so: bf16 rounds the gradient of a bias, a sum that cancels, by half of it in many a
    model that trains well.
    """
    shared = Counter(name.rpartition(".")[0] for name in rows)
    moving = _that_move(rows)
    whole = sum(norm for _, norm, *_ in moving.values())
    found = {name: _part(row, whole) for name, row in moving.items() if shared[name.rpartition(".")[0]] > 1}
    return {name: part for name, part in found.items() if part.share > PART_FLOOR}


def _parts(rows: Rows) -> dict[str, _Part]:
    """Return the modules."""
    sums = _sums(_that_move(rows))
    whole = sum(norm for _, norm, *_ in sums.values())
    return {name: _part(row, whole) for name, row in sums.items()}


def _sums(rows: Rows) -> dict[str, list[float]]:
    """Return what the comparisons of each module's own parameters come to together."""
    sums: dict[str, list[float]] = {}
    for name, row in rows.items():
        known = sums.setdefault(name.rpartition(".")[0], [0.0] * len(row))
        known[:] = map(add, known, row)
    return sums


def _part(row: Sequence[float], whole: float) -> _Part:
    error, norm, _, lost, live = row
    return _Part(_ratio(error, norm) ** 0.5, _ratio(norm, whole) ** 0.5, lost > DEAD_SHARE * live)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
