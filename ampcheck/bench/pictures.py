"""The charts of a bench as files: linked from its Markdown, and fit for a paper."""

from collections import defaultdict
from dataclasses import dataclass

from ampcheck.bench import svg
from ampcheck.bench.gpu_time import named
from ampcheck.bench.result import Bench
from ampcheck.bench.shapes import standalone, title
from ampcheck.bench.table import records


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart: of which case ("": of the whole bench), how its file's name ends, what it shows."""

    case: str
    suffix: str
    title: str
    text: str


def pictures(bench: Bench) -> tuple[Picture, ...]:
    """Return every chart that has something to show."""
    steps = int(bench.settings.get("steps", 0))
    found = [
        (case.key, f"{at + 1}-{kind}", chart)
        for at, case in enumerate(bench.cases)
        for kind, chart in svg.charts(case, steps).items()
    ]
    found += [("", f"batches-{kind}", chart) for kind, chart in _batches(bench) if chart]
    return tuple(Picture(case, suffix, title(chart), standalone(chart)) for case, suffix, chart in found)


def _batches(bench: Bench) -> list[tuple[str, str]]:
    """Return the speed-up against the batch size: measured here, and predicted on each GPU."""
    series: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    columns = {"here": "speedup"} | {name: f"predicted_speedup {name}" for name in named(bench)}
    plain = {
        case.key: case
        for case in bench.cases
        if case.key in {f"batch {case.batch_size}", f"batch {case.batch_size}, infer"}
    }
    for record in records(bench):
        case = plain.get(record["case"])
        for place, column in columns.items():
            if case is not None and record[column] is not None:
                where = f"{place}-infer" if case.mode == "infer" else place
                series[where][record["precision"]][case.batch_size] = record[column]
    here = bench.environment.get("device", "CPU")
    return [
        (place, svg.batches(lines, f"Speed-up against batch size, {_where(place, here)}"))
        for place, lines in series.items()
    ]


def _where(place: str, here: str) -> str:
    name = place.removesuffix("-infer")
    where = f"measured on {here}" if name == "here" else f"predicted on {name}"
    return where + ", inference" * (name != place)
