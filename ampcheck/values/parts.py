"""What the comparisons of single gradients come to: for the whole step, and for the parts of a model."""

from collections.abc import Mapping, Sequence

from ampcheck.values.outcome import (
    DEAD_SHARE,
    HARM_ERROR,
    MAGNIFIES,
    MOVES_NOTHING,
    PART_ERROR,
    PART_FLOOR,
    Outcome,
)


def outcome_of(
    rows: Mapping[str, Sequence[float]], value: float, reference: float, log2_scale: int
) -> Outcome:
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


def _that_move(rows: Mapping[str, Sequence[float]]) -> Mapping[str, Sequence[float]]:
    """Return the comparisons; where FP32's gradient would move no weight either, without its errors and losses."""
    total = sum(norm for _, norm, *_ in rows.values())
    if not 0.0 < total < MOVES_NOTHING**2:
        return rows
    return {name: (0.0, norm, bad, 0.0, live) for name, (_, norm, bad, _, live) in rows.items()}


def part_errors(rows: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the error of each module's own gradient, of those that matter beside the others."""
    sums: dict[str, tuple[float, float]] = {}
    for name, (error, norm, *_) in _that_move(rows).items():
        owner = name.rpartition(".")[0]
        known = sums.get(owner, (0.0, 0.0))
        sums[owner] = (known[0] + error, known[1] + norm)
    floor = PART_FLOOR**2 * sum(norm for _, norm in sums.values())
    return {name: _ratio(error, norm) ** 0.5 for name, (error, norm) in sums.items() if norm > floor}


def dead_parts(rows: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the error of each module most of whose gradient became zero: no rounding explains that."""
    lost: dict[str, list[float]] = {}
    for name, row in rows.items():
        known = lost.setdefault(name.rpartition(".")[0], [0.0, 0.0])
        known[0], known[1] = known[0] + row[3], known[1] + row[4]
    errors = part_errors(rows)
    return {
        name: errors[name]
        for name, (zeros, live) in lost.items()
        if zeros > DEAD_SHARE * live and errors.get(name, 0.0) > DEAD_SHARE
    }


def harmed_parts(
    rows: Mapping[str, Sequence[float]], rounded: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return the parts that are far off, and further than rounded weights explain where these were tried."""
    known = part_errors(rounded)
    return {
        name: error
        for name, error in part_errors(rows).items()
        if error > max(PART_ERROR, MAGNIFIES * known.get(name, 0.0))
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
