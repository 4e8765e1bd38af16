"""How long each format takes: `python tests/benchmarks/rendering.py > reports/rendering.md`."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from saved_reports import repeated, saved

from ampcheck.renderers import RENDERERS, render
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.report import Report

RUNS = 3
SITES, LAYERS = 5_000, 10_000
#: Seconds asked for: of any format for so many sites, of loading so many layers.
RENDER_LIMIT, LOAD_LIMIT = 1.0, 2.0

TEXT = """\
# What writing a report takes

Made by `python tests/benchmarks/rendering.py > reports/rendering.md`.

Seconds of the processor, the shortest of {runs} runs on one core, libraries loaded before. The report is that
of `tests/saved/t5.py` held by a larger model as often as it takes: {sites} sites of the low-precision run in
{modules} modules, then {more_sites} sites in {layers} modules. Asked for are {render:g} s a format for
{asked:,} sites, and {load:g} s for loading {layers} layers. That work grows in proportion to the report, and
no faster, is held by tests that count instructions (`tests/renderers/test_renderers.py`).

| format | {sites} sites, s | written, kB | {more_sites} sites, s |
|---|---:|---:|---:|
{rows}
| loading the JSON | {loading_few:.2f} | | {loading_many:.2f} |

Runnable processes while this was measured: {busy:.1f} on {cores} cores.
"""


def enlarged(sites: int = 0, layers: int = 0) -> Report:
    """Return a report of at least so many sites and layers."""
    base = saved("t5")
    return repeated(base, max(-(-sites // len(base.low.sites)), -(-layers // len(modules(base)))))


def modules(report: Report) -> set[str]:
    """Return the modules with operations of their own."""
    return {site.module for site in report.low.sites if site.op}


def seconds(call: Callable[[], object]) -> float:
    """Return the shortest time of several runs."""
    times = []
    for _ in range(RUNS):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)


def main() -> None:
    few, many = enlarged(sites=SITES), enlarged(layers=LAYERS)
    rows = []
    for form in RENDERERS:
        text = render(few, form)
        once, again = seconds(lambda f=form: render(few, f)), seconds(lambda f=form: render(many, f))
        rows.append(f"| {form} | {once:.2f} | {len(text.encode()) / 1000:,.0f} | {again:.2f} |")
    texts = [to_json(few), to_json(many)]
    print(
        TEXT.format(
            runs=RUNS,
            sites=f"{len(few.low.sites):,}",
            modules=f"{len(modules(few)):,}",
            more_sites=f"{len(many.low.sites):,}",
            layers=f"{len(modules(many)):,}",
            asked=SITES,
            render=RENDER_LIMIT,
            load=LOAD_LIMIT,
            rows="\n".join(rows),
            loading_few=seconds(lambda: from_json(texts[0])),
            loading_many=seconds(lambda: from_json(texts[1])),
            busy=os.getloadavg()[0],
            cores=os.cpu_count(),
        ),
        end="",
    )


if __name__ == "__main__":
    main()
