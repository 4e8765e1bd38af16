"""Casts that nothing was gained by."""

from collections.abc import Mapping
from math import ceil

from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import DTYPE_BYTES
from ampcheck.values.report import Report
from ampcheck.values.trace import Cast, CastCount, Phase, Site
from ampcheck.values.wording import percent, plural, size

#: Share of the bytes that the step's operations write from which on needless casts are worth a word: below it
#: taking all of them away would not be noticed.
WORTH_SAYING = 0.05


def cast_ping_pong(report: Report) -> list[Finding]:
    """Tensors are cast back and forth between half precision and FP32.

    What it finds: casts that undo the one before them, and islands of FP32: lines of code that cast half
    precision to FP32 and back, with the bytes that these casts write; from 5 % of what the step writes on.

    Why it matters: a cast reads and writes a whole tensor and computes nothing; on a GPU, where memory is what
    most operations wait for, it costs as much as an addition.

    What to do: take .float() and .to(x.dtype) away where autocast does the right thing anyway; put the island's
    operations together, so that they share one cast to FP32; or switch autocast off around all of them.

    Example: x.float() in front of a linear layer, which casts it back.

    When to ignore it: where FP32 is needed for the numbers: a normalisation or a loss, which autocast itself runs in
    FP32, is an island too.
    """
    wasted = _wasted(report.low.casts)
    total, written = sum(wasted.values()), _written(report)
    if not total or total < WORTH_SAYING * written:
        return []
    places = sorted(wasted, key=lambda cast: -wasted[cast])
    worst = places[0]
    where = f" ({worst.file}:{worst.line})" if worst.file else ""
    return [
        Finding(
            "AMP303",
            "cast-ping-pong",
            "cast-ping-pong",
            Severity.INFO,
            f"{size(total)} of casts go back and forth in {plural(len(places), 'place')}, {percent(total / written)} "
            f"of what the step writes; most in {worst.module or 'the root or the loss'}{where}: {size(wasted[worst])}",
            tuple(Site(c.module, "_to_copy", "output", c.phase, c.target, c.file, c.line) for c in places),
            {"bytes": total, "share": total / written, "places": len(places)},
        )
    ]


def _wasted(casts: Mapping[Cast, CastCount]) -> dict[Cast, int]:
    """Return the bytes of needless casts by line of code, under the line's first cast."""
    lines: dict[tuple[str, str, int, Phase], list[Cast]] = {}
    for cast in casts:
        if {DTYPE_BYTES.get(cast.source), DTYPE_BYTES.get(cast.target)} == {2, 4}:
            lines.setdefault((cast.module, cast.file, cast.line, cast.phase), []).append(cast)
    spent = {line[0]: max(_undone(line, casts), _island(line, casts)) for line in lines.values()}
    return {cast: number for cast, number in spent.items() if number}


def _undone(line: list[Cast], casts: Mapping[Cast, CastCount]) -> int:
    """Return the bytes of the casts that undo the one before; a place's calls are of one size on average."""
    counts = (casts[cast] for cast in line)
    return sum(ceil(count.bytes * count.round_trips / count.calls) for count in counts if count.round_trips)


def _island(line: list[Cast], casts: Mapping[Cast, CastCount]) -> int:
    """Return the bytes that a line of the forward writes by casting to FP32 and back."""
    up = sum(casts[cast].elements for cast in line if cast.target == "float32")
    down = sum(casts[cast].elements for cast in line if cast.target != "float32")
    crossing = line[0].file and line[0].phase is Phase.FORWARD
    return min(up, down) * (DTYPE_BYTES["float32"] + DTYPE_BYTES["float16"]) if crossing else 0


def _written(report: Report) -> int:
    """Return the bytes that the operations of the low-precision run wrote."""
    return sum(
        elements * DTYPE_BYTES.get(site.dtype, 4)
        for site, elements in report.low.numels().items()
        if site.op and site.phase is not Phase.STATE
    )
