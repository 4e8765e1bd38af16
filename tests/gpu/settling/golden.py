"""The files that came back from a GPU, and what they have to say: nothing of it is written by hand."""

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from settling.keep import COMPLETE, Row, read
from settling.plan import FILES, STAGES

#: Where they are kept.
FOLDER = Path(__file__).parents[2] / "golden"
EMPTY = "not measured: tests/golden is empty, nothing here has run on a GPU"


def known(folder: Path = FOLDER) -> dict[str, dict[str, str]]:
    """Return the differences that are known and cannot be mended: by stage and row, each with its reason."""
    path = folder / "known.json"
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


class Golden:
    """A folder of files of one day."""

    def __init__(self, folder: Path = FOLDER, *, self_test: bool = False) -> None:
        """Read a folder; files of a self-test were made on a CPU and prove nothing."""
        self.files = {name: read(folder / name) for name in FILES if (folder / name).exists()}
        if not self_test and any(file["machine"].get("device") == "CPU" for file in self.files.values()):
            raise ValueError(f"expected files of a GPU in {folder.name}, got those of a self-test")

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return bool(self.files)

    def rows(self, stage: str) -> dict[str, Row]:
        """Return the rows of a stage that were measured: neither errors nor left out."""
        return {
            key: row
            for key, row in self._part(stage)["rows"].items()
            if not {"error", "skipped"} & row.keys()
        }

    def errors(self, stage: str) -> dict[str, str]:
        """Return what was not measured, and why."""
        rows = self._part(stage)["rows"]
        return {key: row.get("error", row.get("skipped")) for key, row in rows.items()
                if {"error", "skipped"} & row.keys()}  # fmt: skip

    def ended(self, stage: str) -> str:
        """Return how a stage ended; nothing: it was not run."""
        return str(self._part(stage)["ended"])

    def machine(self, stage: str) -> Row:
        """Return the machine that a stage ran on."""
        file = next(each.file for each in STAGES if each.name == stage)
        found: Row = self.files.get(file, {}).get("machine", {})
        return found

    def _part(self, stage: str) -> Row:
        file = next(each.file for each in STAGES if each.name == stage)
        parts = self.files.get(file, {"stages": {}})["stages"]
        found: Row = parts.get(stage, {"ended": "", "rows": {}})
        return found


class Figure(NamedTuple):
    """What a stage came to: a claim and its figure."""

    claim: str
    figure: str


def _traces(rows: dict[str, Row]) -> Iterator[Figure]:
    same = sum(not row["differences"] for row in rows.values())
    yield Figure("operations, dtypes, casts and exponents are CUDA's", f"{same} of {len(rows)} runs")


#: How CUDA is told to add up products, in words.
_SUMS = {"default": "", "float16 sums": ", where it adds up in float16"}


def _silicon(rows: dict[str, Row]) -> Iterator[Figure]:
    for how in dict.fromkeys(key.rpartition(" | ")[2] for key in rows):
        # float32 is not emulated: its rows show what the card itself does.
        some = {key: row["apart"]["max"] for key, row in rows.items()
                if key.endswith(f"| {how}") and "float32" not in key}  # fmt: skip
        if some:
            worst = max(some, key=lambda key: some[key])
            near = sum(far <= 1 for far in some.values())
            yield Figure(
                f"emulated results are the GPU's{_SUMS.get(how, f', {how}')}",
                f"{near} of {len(some)} operators within one rounding; farthest: {some[worst]:g} "
                f"({worst.rpartition(' | ')[0].replace(' | ', ', ')})",
            )


def _zoo(rows: dict[str, Row]) -> Iterator[Figure]:
    same = sum(not row["differs"] for row in rows.values())
    words = sum("word" not in row["differs"] for row in rows.values())
    figure = f"{words} of {len(rows)} cases; {same} in all details"
    yield Figure("the verdict is the same on CUDA and on the CPU", figure)


def _transparency(rows: dict[str, Row]) -> Iterator[Figure]:
    some = [row for row in rows.values() if "differ" in row]
    same = sum(not row["differ"] and not row.get("left behind") for row in some)
    yield Figure("recording changes nothing on CUDA", f"{same} of {len(some)} bit-identical")
    if "waits" in rows:
        waits = rows["waits"]
        said = "none" if not waits["raised"] else waits["raised"]
        yield Figure(
            "waits inside a recorded step; transfers after it", f"{said}; {waits['transfers after']}"
        )


def _kernel(rows: dict[str, Row]) -> Iterator[Figure]:
    exact = {key: row for key, row in rows.items() if key.startswith("exact")}
    right = sum(not row["wrong"] for row in exact.values())
    shares = [row["share of the copy's"] for key, row in rows.items() if key.startswith("bandwidth")]
    yield Figure("statistics on the GPU are exact", f"{right} of {len(exact)} dtypes")
    if shares:
        yield Figure(
            "their bandwidth, as a share of a copy's", f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"
        )


def _cost(rows: dict[str, Row]) -> Iterator[Figure]:
    for key, row in rows.items():
        if "recorded" in row:
            others = [
                f"{arm} {row[arm][1]:.2f}" for arm in ("layers", "idle", "naive", "anomaly") if arm in row
            ]
            yield Figure(
                f"a recorded step costs: {key}", f"{row['recorded'][1]:.2f} times; {', '.join(others)}"
            )


def _bench(rows: dict[str, Row]) -> Iterator[Figure]:
    for what, limit in (("memory", 0.10), ("time", 0.15)):
        off = [abs(found[f"{what}, off by"]) for row in rows.values() for found in row.values()
               if f"{what}, off by" in found]  # fmt: skip
        if off:
            near = sum(each <= limit for each in off)
            yield Figure(
                f"predicted {what} is off by",
                f"median {100 * statistics.median(off):.0f} %, worst {100 * max(off):.0f} %; "
                f"{near} of {len(off)} within {100 * limit:.0f} %",
            )


def _scripts(rows: dict[str, Row]) -> Iterator[Figure]:
    same = sum(row["same output"] and row["exit"][0] == row["exit"][1] for row in rows.values())
    scales = sum(row["same scales"] for row in rows.values())
    yield Figure(
        "scripts run the same under `ampcheck run`", f"{same} of {len(rows)}; scales recorded right: {scales}"
    )


def _fp8(rows: dict[str, Row]) -> Iterator[Figure]:
    if rows:
        worst = max(row["apart"]["max"] for row in rows.values())
        near = sum(row["apart"]["p99"] <= 1 for row in rows.values())
        yield Figure("emulated FP8 products are the card's",
                     f"{near} of {len(rows)} within one rounding for 99 %; farthest: {worst:g}")  # fmt: skip


FIGURES: dict[str, Callable[[dict[str, Row]], Iterator[Figure]]] = {
    "traces": _traces, "silicon": _silicon, "zoo": _zoo, "transparency": _transparency, "kernel": _kernel,
    "cost": _cost, "bench": _bench, "scripts": _scripts, "fp8": _fp8,
}  # fmt: skip


def figures(golden: Golden, stage: str) -> list[Figure]:
    """Return what a stage came to; nothing where no row was measured."""
    rows = golden.rows(stage)
    return list(FIGURES[stage](rows)) if rows else []


def unfinished(golden: Golden) -> list[str]:
    """Return the stages that are not whole, with why."""
    found = []
    for stage in STAGES:
        ended, errors = golden.ended(stage.name), golden.errors(stage.name)
        if ended != COMPLETE:
            found.append(f"{stage.name} ({ended or 'not run'})")
        elif errors:
            found.append(f"{stage.name} ({len(errors)} rows: {next(iter(errors.values()))})")
    return found
