"""A bench as Markdown, and as plain text for a terminal."""

import textwrap
from collections.abc import Iterable, Sequence

from ampcheck.bench import gpu_time, views
from ampcheck.bench.compare import Change
from ampcheck.bench.result import Bench, Case, Closeness, OneStep, Row, TrainingCurve
from ampcheck.bench.table import MIB, TIMES, Line, caveats, columns, headings, legend, lines, where
from ampcheck.bench.verdicts import against as against_row
from ampcheck.renderers.drawing import NONE
from ampcheck.renderers.markup import inline, table
from ampcheck.values.wording import clean, percent

#: Of a bench in a terminal.
VIEWS = ("sweep", "cases", "article")
_SHOWN_LAYERS = 5
_STEP = ("precision", "golden", "loss", "outputs", "gradients", "cosine", "bias", "worst gradient")
_COURSE = (
    "precision", "seed", "ended", "last losses", "training loss in FP32", "validation loss", "in its precision",
    "metric", "in its precision", "skips settling", "skips",
)  # fmt: skip
#: Columns of the terminal's table. The verdict is the longest: at the end of a line it can go on below itself.
_TERMINAL = {
    "precision": "precision",
    "step": "ms here (IQR)",
    "speedup": "× here",
    "memory": "CUDA MiB",
    "share": "× CUDA",
    "fits": "fits",
    "error": "gradients off",
    "verdict": "verdict",
}
#: Left out where there is no room, in this order: the reports have them.
_SPARE = ("memory", "error", "fits")
#: A verdict is given that much room, however narrow the terminal.
_NARROWEST = 24
#: A title of the articles' table goes on below itself from there on, or from as many characters as its column has.
_TITLE = 9


def to_markdown(
    bench: Bench, changes: Sequence[Change] = (), pictures: Sequence[tuple[str, str, str]] = ()
) -> str:
    """Return the report as Markdown; `pictures` are case, title and file of the charts beside it."""
    out = [f"# Bench: {inline(bench.target)}", ""]
    if bench.command:
        out += [f"Made by `{clean(bench.command).replace('`', '')}`.", ""]
    if bench.interrupted:
        out += ["**Interrupted**: this is what was done by then.", ""]
    out += [" · ".join(f"{inline(name)} {inline(value)}" for name, value in bench.environment.items()), ""]
    out += [f"- {inline(note)}" for note in (*legend(bench), *gpu_time.legend(bench), *bench.notes)]
    out += ["", *_summary(bench), *_linked(pictures, "")] if bench.cases else []
    for case in bench.cases:
        out += ["", *_case(bench, case)]
        out += _linked(pictures, case.key)
    if changes:
        out += ["", "## Since before", "", *_table(("what", "before", "now", ""), [c.cells for c in changes])]
    return "\n".join(out) + "\n"


def _case(bench: Bench, case: Case) -> Iterable[str]:
    shown = lines(bench, case)
    names, titles = columns(bench, shown), headings(bench)
    yield f"## {inline(case.key).capitalize()}"
    yield ""
    yield from _table([titles[name] for name in names], [[line[name] for name in names] for line in shown])
    yield ""
    yield from (f"- {inline(text)}" for text in caveats(bench, case))
    predicted, compared = gpu_time.table(bench, case), [_step_cells(row) for row in case.rows if row.one_step]
    yield from _titled("### Time on GPUs, predicted", gpu_time.titles(bench), predicted)
    yield from _titled(f"### Throughput on {where(bench)}", *views.work(bench, case))
    yield from _memory(case)
    yield from _titled("### One step against the golden run", _STEP, compared)
    courses = [_course_cells(row.precision, course) for row in case.rows for course in row.courses]
    yield from _titled("### Training, seed by seed", _COURSE, courses)
    if case.reasons:
        yield from ("", "### What limits the speed-up", "")
        for reason in case.reasons:
            yield f"- **{inline(reason.message)}**: {inline(reason.evidence)}; {inline(reason.gain)}."


def _linked(pictures: Sequence[tuple[str, str, str]], case: str) -> list[str]:
    return [
        line for key, title, file in pictures if key == case for line in ("", f"![{inline(title)}]({file})")
    ]


def _summary(bench: Bench) -> Iterable[str]:
    """Yield the layout that articles print, and for a sweep a table with a column for each precision."""
    yield from ("## Summary", "", *_table(*views.article(bench)))
    for value, title in views.sweep(bench):
        names, rows = views.pivot(bench, value)
        yield from _titled(f"{title}, by case and precision:", ("case", *names), rows)


def _memory(case: Case) -> Iterable[str]:
    """Yield the predicted peak by role, and the layers that keep the most for the backward."""
    splits, roles = case.splits, case.roles
    if not splits:
        return
    rows = [
        (name, _mib(split.peak_bytes), split.moment, *(_mib(split.roles.get(role, 0)) for role in roles))
        for name, split in splits.items()
    ]
    yield from _titled("### Memory at the predicted peak, MiB", ("precision", "peak", "in the", *roles), rows)
    layers = list(next(iter(splits.values())).layers)[:_SHOWN_LAYERS]
    kept = [(name, *(_mib(split.layers.get(layer, 0)) for layer in layers)) for name, split in splits.items()]
    heads = ("precision", *(layer or "(root)" for layer in layers))
    yield from _titled("Kept for the backward by the largest layers, MiB:", heads, kept if layers else [])


def _step_cells(row: Row) -> tuple[str, ...]:
    step = row.one_step
    assert step is not None
    return (
        row.precision,
        step.reference,
        _share(step.loss_error),
        _share(step.outputs.relative_rms) if step.outputs else NONE,
        *((NONE, NONE, NONE, NONE) if step.gradients is None else _gradient_cells(step, step.gradients)),
    )


def _gradient_cells(step: OneStep, found: Closeness) -> tuple[str, ...]:
    worst = f"{step.worst} ({_share(step.worst_error)})"
    return _share(found.relative_rms), f"{found.cosine:.6f}", f"{found.bias:+.1e}", worst


def _course_cells(name: str, run: TrainingCurve) -> tuple[str, ...]:
    ends = (
        run.final_loss,
        run.full_loss,
        run.validation_loss,
        run.validation_loss_low,
        run.metric,
        run.metric_low,
    )
    return name, str(run.seed), run.status, *map(_number, ends), str(run.settling), str(run.skipped)


def to_text(bench: Bench, width: int = 100, view: str = "sweep") -> str:
    """Return the tables for a terminal of so many columns, in one of the `VIEWS`; a single case is shown in full."""
    if view == "article":
        return "\n".join(_article(bench, width)) + "\n"
    if len(bench.cases) > 1 and view == "sweep":
        return "\n".join(_sweep(bench, width)) + "\n"
    out: list[str] = []
    for case in bench.cases:
        out += [f"{clean(bench.target)} · {case.key}", *_terminal_table(bench, lines(bench, case), width)]
        predicted = gpu_time.table(bench, case)
        if predicted:
            out += ["", "  predicted on GPUs that are not here:"]
            shown = [gpu_time.titles(bench), *predicted]
            out += aligned([[*row[:4], row[7], *row[len(gpu_time.TITLES) :]] for row in shown])
        titles, rows = views.work(bench, case)
        if rows and (bench.cuda or bench.epoch):
            out += ["", f"  on {where(bench)}:", *aligned([titles, *rows])]
        out += _hanging("  · ", caveats(bench, case), width)
        out += _hanging("  ! ", [f"{clean(r.message)}: {clean(r.evidence)}" for r in case.reasons], width)
        out.append("")
    notes = (*(legend(bench)[-3:] if not bench.cuda else ()), *gpu_time.legend(bench)[:1])
    out += _hanging("  ", notes, width)
    return "\n".join(out) + "\n"


def _article(bench: Bench, width: int) -> Iterable[str]:
    """Yield the table that articles print: accuracy, time and memory, each beside FP32's."""
    yield clean(bench.target)
    titles, rows = views.article(bench)
    widths = [max(_TITLE, *map(len, column)) for column in zip(*rows, strict=True)]
    wrapped = [textwrap.fill(title, room) for title, room in zip(titles, widths, strict=True)]
    yield from aligned([wrapped, *rows])
    yield ""
    notes = () if bench.cuda else legend(bench)[-3:]
    yield from _hanging("  ", [*notes, *gpu_time.legend(bench)[:1]], width)


def _sweep(bench: Bench, width: int) -> Iterable[str]:
    """Yield a table for each figure, with a line for each case, and what stands against single rows."""
    yield f"{clean(bench.target)} · {len(bench.cases)} cases"
    for value, title in views.sweep(bench):
        names, rows = views.pivot(bench, value)
        yield from ("", f"  {title}", *aligned([("case", *names), *rows]))
    yield ""
    against = (
        f"{case.key}: {row.precision}: {text}"
        for case in bench.cases
        for row in case.rows
        if (text := against_row(bench, case, row))
    )
    yield from _hanging("  · ", [*against, "each case in full: the reports, or --view cases"], width)


def _terminal_table(bench: Bench, shown: Sequence[Line], width: int) -> list[str]:
    """Return the columns that say anything, without the less telling ones where there is no room for them."""
    said = columns(bench, shown)
    names = [name for name in _TERMINAL if name in said]
    if not bench.cuda:
        names = [
            *(name for name in names if name not in (*TIMES, "verdict")),
            *(n for n in TIMES if n in names),
            "verdict",
        ]
    for spare in ("", *_SPARE):
        names = [name for name in names if name != spare]
        rows = [[_TERMINAL[name] for name in names], *([line[name] for name in names] for line in shown)]
        before = max(len(line) for line in aligned([[*row[:-1], "|"] for row in rows])) - 1
        if width - before >= _NARROWEST:
            break
    return _folded(rows, width - before)


def _folded(rows: Sequence[Sequence[str]], room: int) -> list[str]:
    """Return rows with their columns under each other, the last of which goes on below itself."""
    folded: list[Sequence[str]] = []
    for *cells, last in rows:
        first, *more = textwrap.wrap(last, max(room, _NARROWEST)) or [""]
        folded += [(*cells, first), *((*("" for _ in cells), part) for part in more)]
    return aligned(folded)


def _hanging(mark: str, texts: Iterable[str], width: int) -> list[str]:
    """Return texts behind a mark, their further lines as far in as the first."""
    wrap = textwrap.TextWrapper(width, initial_indent=mark, subsequent_indent=" " * len(mark))
    return [line for text in texts for line in wrap.wrap(text)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows with their columns under each other."""
    from tabulate import tabulate

    drawn: str = tabulate(rows, tablefmt="plain", disable_numparse=True)
    return [f"  {line}".rstrip() for line in drawn.splitlines()]


def _titled(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield a table under its title; nothing without rows."""
    if rows:
        yield from ("", title, "", *_table(titles, rows))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield table([inline(title) for title in titles], [[inline(cell) for cell in row] for row in rows])


def _mib(number: int) -> str:
    return f"{number / MIB:.2f}" if number < 100 * MIB else f"{number / MIB:.0f}"


def _share(value: float) -> str:
    return percent(value) if value == value and (value >= 1e-4 or value == 0) else f"{value:.1e}"  # noqa: PLR0124, PLR2004


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"
