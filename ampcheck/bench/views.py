"""A whole bench in one table: the numbers as a DataFrame, a sweep as a pivot, and the layout that articles print."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ampcheck.bench import gpu_time
from ampcheck.bench.result import Bench, Case
from ampcheck.bench.table import lines, measure_of, records, throughput
from ampcheck.renderers.drawing import NONE
from ampcheck.values.wording import percent

if TYPE_CHECKING:
    import pandas as pd

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
#: What a measured time comes to, what it is called, and how it is written.
THROUGHPUT: dict[str, tuple[str, Callable[[float], str]]] = {
    "samples_per_s": ("samples/s", "{:,.0f}".format),
    "tokens_per_s": ("tokens/s", "{:,.0f}".format),
    "tflops_per_s": ("TFLOP/s", "{:.3g}".format),
    "mfu": ("MFU", percent),
    "joules_per_step": ("J a step", "{:.3g}".format),
    "watts": ("W on average", "{:.0f}".format),
    "epoch_s": ("epoch, min", lambda seconds: f"{seconds / 60:,.3g}"),
    "epoch_price": ("cost of an epoch", "{:,.3g}".format),
}


def frame(bench: Bench) -> "pd.DataFrame":
    """Return the numbers of every row as a DataFrame, with the predicted speed-up on each GPU as a column."""
    import pandas as pd

    return pd.DataFrame(records(bench))


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


def article(bench: Bench) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the titles and the rows of the table that articles print: accuracy, time and memory beside FP32's.

    Where times are predicted, they stand in the place of a CPU's own, which say nothing about a GPU.
    """
    gpus = gpu_time.named(bench)
    sweeps, timed = len(bench.cases) > 1, bench.cuda or not gpus
    titles = {
        "case": ["case"] * sweeps,
        "accuracy": ["precision", measure_of(bench).replace("metric", "accuracy")],
        "predicted": [title for name in gpus for title in (f"ms on {name}, predicted", f"× speed on {name}")],
        "memory": ["CUDA MiB" + ("" if bench.cuda else ", predicted"), "× memory"],
        "here": ["ms a step here", "× speed here"] * timed,
    }
    order = ["case", "accuracy", *(["here"] if bench.cuda else []), "predicted", "memory"]
    order += [] if bench.cuda else ["here"]
    rows = []
    for case in bench.cases:
        for row, line in zip(case.rows, lines(bench, case), strict=True):
            cells = {
                "case": (case.key,) * sweeps,
                "accuracy": (line["precision"], line["training"]),
                "predicted": [cell for name in gpus for cell in gpu_time.cells(case, row, name)],
                "memory": (line["memory"], line["share"]),
                "here": (line["step"].partition(" ")[0], line["speedup"].partition(" ")[0]) * timed,
            }
            rows.append([cell for part in order for cell in cells[part]])
    names = [title for part in order for title in titles[part]]
    filled = [at for at in range(len(names)) if any(row[at] != NONE for row in rows)]
    return [names[at] for at in filled], [tuple(row[at] for at in filled) for row in rows]


def work(bench: Bench, case: Case) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the titles and the rows of what the measured times come to; no rows where nothing was timed."""
    found = {row.precision: throughput(bench, case, row) for row in case.rows if row.time is not None}
    names = [name for name in THROUGHPUT if any(rates[name] is not None for rates in found.values())]
    rows = [
        (precision, *(_cell(rates[name], THROUGHPUT[name][1]) for name in names))
        for precision, rates in found.items()
    ]
    return ["precision", *(THROUGHPUT[name][0] for name in names)], rows


def _title(name: str) -> str:
    return VALUES[name][0] if name in VALUES else f"× as fast on {name.partition(' ')[2]}, predicted"


def _cell(number: Any, write: Callable[[float], str]) -> str:
    return NONE if number is None or math.isnan(number) else write(number)
