"""A whole bench in one table: the numbers as a DataFrame, a sweep as a pivot, and the layout that articles print."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ampcheck.bench.gpu_time import rates
from ampcheck.bench.result import Bench
from ampcheck.bench.table import MIB, records
from ampcheck.values.wording import percent

if TYPE_CHECKING:
    import pandas as pd

_NONE = "–"
#: The layout of articles; on a CPU the times are the CPU's own.
ARTICLE = ("case", "precision", "accuracy", "ms a step here", "× speed here", "CUDA MiB", "× memory")
#: What a pivot shows, what it is called, and how a number is written.
VALUES: dict[str, tuple[str, Callable[[float], str]]] = {
    "memory_ratio": ("× CUDA memory", "{:.2f}".format),
    "largest_batch": ("largest batch that fits", "{:,.0f}".format),
    "gradient_error": ("gradient error", percent),
    "trained_mean": ("trained to", "{:.4g}".format),
    "speedup": ("× as fast here", "{:.2f}".format),
    "samples_per_s": ("samples/s here", "{:,.0f}".format),
    "watts": ("W on average", "{:.0f}".format),
}


def frame(bench: Bench) -> "pd.DataFrame":
    """Return the numbers of every row as a DataFrame, with the predicted speed-up on each GPU as a column."""
    import pandas as pd

    rows = records(bench)
    pairs = [(case, row) for case in bench.cases for row in case.rows]
    for record, (case, row) in zip(rows, pairs, strict=True):
        for time in row.gpu_times:
            found = rates(case, row, time)
            record[f"predicted_s {time.gpu}"] = time.seconds
            record[f"predicted_speedup {time.gpu}"] = found[0] if found else None
    return pd.DataFrame(rows)


def sweep(bench: Bench) -> list[tuple[str, str]]:
    """Return the figures of a sweep that say anything, each with its title; none for a single case."""
    if len(bench.cases) < 2:  # noqa: PLR2004  # one line is no table
        return []
    table = frame(bench)
    names = (*VALUES, *table.filter(like="predicted_speedup "))
    return [(name, _title(name)) for name in names if table[name].notna().any()]


def pivot(bench: Bench, value: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the precisions, and for each case what a figure is in each of them."""
    table = frame(bench).astype({value: float})
    wide = table.pivot_table(value, "case", "precision", sort=False, dropna=False)
    write = VALUES.get(value, ("", "{:.2f}".format))[1]
    lines = zip(wide.index, wide.to_numpy(), strict=True)
    rows = [(str(case), *(_cell(number, write) for number in numbers)) for case, numbers in lines]
    return [str(name) for name in wide.columns], rows


def article(bench: Bench) -> list[tuple[str, ...]]:
    """Return precision, accuracy, time and memory for each row, the last two also as multiples of FP32's."""
    writers = {
        "trained_mean": "{:.4g}".format,
        "median_s": lambda seconds: f"{1000 * seconds:.3g}",
        "speedup": "{:.2f}".format,
        "cuda_bytes": lambda size: f"{size / MIB:.4g}",
        "memory_ratio": "{:.2f}".format,
    }
    return [
        (
            record["case"],
            record["precision"],
            *(_cell(record[name], write) for name, write in writers.items()),
        )
        for record in records(bench)
    ]


def _title(name: str) -> str:
    return VALUES[name][0] if name in VALUES else f"× as fast on {name.partition(' ')[2]}, predicted"


def _cell(number: Any, write: Callable[[float], str]) -> str:
    return _NONE if number is None or math.isnan(number) else write(number)
