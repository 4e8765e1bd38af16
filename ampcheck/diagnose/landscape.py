"""The exponent landscape: where each layer's numbers lie against what a format can hold."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise

from ampcheck.values.formats import FORMATS
from ampcheck.values.recipe_audit import OperandStats
from ampcheck.values.report import Report, low_tensors
from ampcheck.values.stats import TensorStats, merge
from ampcheck.values.trace import Phase, total

#: Elements at either end that may share the outermost column, so that a few cannot squeeze all the others.
_TAIL = 1e-4
#: Columns on either side of what a format can hold that are always shown, for the words above them.
_MARGINS = (7, 4)
#: A format's own range is shown whole if it is not wider than this; fp16 has 41 powers of two, bf16 261.
_WHOLE = 48
#: The same of E2M1, whose numbers are 0.5, 1, 1.5, 2, 3, 4 and 6.
_E2M1 = (-2, 0, 3)


class Zone(StrEnum):
    """What becomes of a magnitude in a format."""

    UNDERFLOWED = "underflowed"
    SUBNORMAL = "subnormal"
    NORMAL = "normal"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class Column:
    """Some adjacent powers of two that share a zone."""

    low: int  #: floor(log2) of its smallest magnitudes
    high: int  #: floor(log2) of its largest magnitudes, inclusive
    zone: Zone


@dataclass(frozen=True, slots=True)
class LandscapeRow:
    """One layer, or several adjacent ones, in order of execution."""

    modules: tuple[str, ...]
    label: str  #: the path, what the paths share, or the first and the last
    counts: tuple[int, ...]  #: elements per column
    nonzero: int

    def outside(self, columns: Sequence[Column]) -> float:
        """Return the share of the elements that underflows or overflows."""
        return self.share(Zone.UNDERFLOWED, columns) + self.share(Zone.OVERFLOW, columns)

    def share(self, zone: Zone, columns: Sequence[Column]) -> float:
        """Return the share of the elements that lies in a zone."""
        inside = sum(count for count, column in zip(self.counts, columns, strict=True) if column.zone is zone)
        return inside / self.nonzero if self.nonzero else 0.0


@dataclass(frozen=True, slots=True)
class Landscape:
    """What lies in each column: numbers before scaling, a format's edges where the scale puts them."""

    columns: tuple[Column, ...]
    rows: tuple[LandscapeRow, ...]

    @property
    def zones(self) -> list[tuple[Zone, list[Column]]]:
        """Return the zones from left to right, each with its columns."""
        return [
            (zone, list(columns)) for zone, columns in groupby(self.columns, key=lambda column: column.zone)
        ]


def landscape(report: Report, phase: Phase, max_rows: int = 20, max_columns: int = 56) -> Landscape:
    """Return the picture of all low-precision results of a phase, as the FP32 run has them."""
    layers = total((site.module, stats) for site, stats in low_tensors(report, phase).items())
    layers = {module: layers[module] for module in _executed(report) if module in layers}
    layers = {module: stats for module, stats in layers.items() if stats.nonzero}
    if not layers:
        return Landscape((), ())
    scale = report.log2_scale if phase is Phase.BACKWARD else 0
    columns = _columns(merge(layers.values()), _edges(report, scale), max_columns)
    groups = merged(list(layers), max_rows)
    return Landscape(columns, tuple(_row(label, group, layers, columns) for label, group in groups))


def operand_landscape(
    operands: Sequence[OperandStats], name: str, max_rows: int = 40, max_columns: int = 56
) -> Landscape:
    """Return the picture of the scaled operands that a format was given; of too many, those that lose most."""
    held = [one for one in operands if one.format == name and one.scaled.nonzero]
    if len(held) > max_rows:
        worst = sorted(held, key=lambda one: -one.lost)[:max_rows]
        held = [one for one in held if one in worst]
    if not held:
        return Landscape((), ())
    columns = _columns(merge(one.scaled for one in held), _operand_edges(name), max_columns)
    rows = [_row(one.place, [one.place], {one.place: one.scaled}, columns) for one in held]
    return Landscape(columns, tuple(rows))


def _operand_edges(name: str) -> tuple[int, int, int]:
    """Return the first exponent that an operand's format keeps, that is normal, and that it cuts off."""
    fmt = FORMATS.get(name)
    return _E2M1 if fmt is None else (fmt.underflow_exponent - 1, fmt.min_exponent, fmt.max_exponent + 1)


def _executed(report: Report) -> list[str]:
    """Return the modules in order of their first forward operation, then those with a backward only."""
    sites = sorted(
        (site for site in report.low.sites if site.op), key=lambda site: site.phase is not Phase.FORWARD
    )
    return list(dict.fromkeys(site.module for site in sites))


def _edges(report: Report, log2_scale: int) -> tuple[int, int, int]:
    """Return the first exponent that is kept, that is normal, and that overflows.

    Half the smallest subnormal is the last to be underflowed, and only when it is met exactly.
    """
    fmt = report.format
    return (
        fmt.underflow_exponent - 1 - log2_scale,
        fmt.min_exponent - log2_scale,
        fmt.max_exponent + 1 - log2_scale,
    )


def _columns(whole: TensorStats, edges: tuple[int, int, int], max_columns: int) -> tuple[Column, ...]:
    filled = [exponent for exponent, count in whole.exponents() if count]
    low, high = _without_tails(whole)
    octaves = 1
    while True:
        span = _span(low, high, edges, octaves)
        columns: list[Column] = []
        bounds = (min(filled[0], span[0]), *edges, max(filled[-1], span[1]) + 1)
        for zone, (start, stop) in zip(Zone, pairwise(bounds), strict=True):
            first, last = max(start, span[0]), min(stop - 1, span[1])
            if first > last and any(start <= exponent < stop for exponent in filled):
                # a few elements, but in a zone of their own
                first = last = start if span[1] < start else stop - 1
            columns += _split(first, last, octaves, zone)
        if len(columns) <= max_columns:
            return tuple(columns)
        octaves += 1


def _span(low: int, high: int, edges: tuple[int, int, int], octaves: int) -> tuple[int, int]:
    if edges[2] - edges[0] <= _WHOLE:
        below, above = _MARGINS
        return min(low, edges[0] - below * octaves), max(high, edges[2] + above * octaves - 1)
    return low, high


def _without_tails(stats: TensorStats) -> tuple[int, int]:
    """Return the exponents between which all but the tails of the elements lie."""
    rising = list(stats.exponents())
    return _quantile(rising, stats.nonzero), _quantile(rising[::-1], stats.nonzero)


def _quantile(exponents: Iterable[tuple[int, int]], elements: int) -> int:
    seen = last = 0
    for last, count in exponents:  # noqa: B007 - the one reached is the answer
        seen += count
        if seen > elements * _TAIL:
            break
    return last


def _split(first: int, last: int, octaves: int, zone: Zone) -> list[Column]:
    """Return the columns of a zone; where they do not come out even, the outermost one is narrower."""
    if zone in (Zone.UNDERFLOWED, Zone.SUBNORMAL):
        stops = range(last, first - 1, -octaves)
        return [Column(max(stop - octaves + 1, first), stop, zone) for stop in stops][::-1]
    return [Column(start, min(start + octaves - 1, last), zone) for start in range(first, last + 1, octaves)]


def _row(
    label: str, group: list[str], layers: dict[str, TensorStats], columns: tuple[Column, ...]
) -> LandscapeRow:
    whole = merge(layers[module] for module in group)
    counts = [0] * len(columns)
    for exponent, count in whole.exponents():
        if count:
            at = bisect_left(columns, exponent, key=lambda column: column.high)
            counts[min(at, len(columns) - 1)] += count  # a tail belongs to the outermost one of its side
    return LandscapeRow(tuple(group), label, tuple(counts), whole.nonzero)


def merged(modules: list[str], limit: int) -> list[tuple[str, list[str]]]:
    """Return adjacent modules grouped, each group with a label, so that at most `limit` groups are left.

    Modules that share the beginning of their path belong together; a flat stack is cut into even runs.

    >>> merged(["stem", "layers.0.a", "layers.0.b", "layers.1.a"], 3)
    [('stem', ['stem']), ('layers.0', ['layers.0.a', 'layers.0.b']), ('layers.1', ['layers.1.a'])]
    """
    if len(modules) <= limit:
        return [(module, [module]) for module in modules]
    deepest = max(module.count(".") + 1 for module in modules)
    groups: list[tuple[str, list[str]]] = []
    for depth in range(1, deepest + 1):
        finer = _by_prefix(modules, depth)
        if len(finer) > limit:
            # So few rows would hide more than cutting the next level into runs does.
            coarse = len(groups) <= 1 or len(groups) * 4 < limit
            return _runs(finer, limit) if coarse else groups
        groups = finer
    return groups


def _by_prefix(modules: list[str], depth: int) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for module in modules:
        groups.setdefault(".".join(module.split(".")[:depth]), []).append(module)
    return list(groups.items())


def _runs(groups: list[tuple[str, list[str]]], limit: int) -> list[tuple[str, list[str]]]:
    """Return runs of groups of equal length, labelled by their first and last."""
    length = -(-len(groups) // limit)
    runs = (groups[start : start + length] for start in range(0, len(groups), length))
    return [
        (_label(run[0][0], run[-1][0]), [module for _, members in run for module in members]) for run in runs
    ]


def _label(first: str, last: str) -> str:
    """Return "layers.3 … 5" for layers.3 to layers.5."""
    head, dot, _ = first.rpartition(".")
    same = dot and last.startswith(head + dot)
    return first if first == last else f"{first} … {last[len(head) + 1 :] if same else last}"
