"""A bench as one HTML page: no script, nothing loaded from elsewhere, readable in the light and in the dark."""

from collections.abc import Iterable, Sequence

from ampcheck.bench import gpu_time, svg, views
from ampcheck.bench.compare import Change
from ampcheck.bench.result import Bench, Case
from ampcheck.bench.shapes import STYLE, title
from ampcheck.bench.table import TIMES, caveats, columns, headings, legend, lines, where
from ampcheck.renderers.page.elements import Html, document, joined, tag

#: Words of a verdict against a row.
_BAD = ("fails", "worse", "not finite", "lost", "does not run", "out of memory")


def _style() -> str:
    return (
        ":root{color-scheme:light dark;--ink:#1d2430;--dim:#5b6472;--paper:#fff;--edge:#d5dae2;--soft:#f3f5f8;"
        "--good:#1d6b3c;--bad:#a3222a}"
        "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--dim:#9aa4b2;--paper:#14181f;--edge:#333b47;"
        "--soft:#1c222b;--good:#7fd3a0;--bad:#ff9a9f}}"
        "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;"
        "max-width:84rem;padding:0 1rem}h1{font-size:1.5rem;overflow-wrap:anywhere}"
        "h2{font-size:1.2rem;margin-top:2.2rem}"
        "h3{font-size:1rem;margin-top:1.6rem}code{font-family:ui-monospace,monospace;background:var(--soft);"
        "padding:.1em .3em;overflow-wrap:anywhere}.scroll{overflow-x:auto}table{border-collapse:collapse;"
        "font-size:.85rem;font-variant-numeric:tabular-nums}th,td{text-align:left;padding:.35rem .45rem;"
        "border-bottom:1px solid var(--edge);vertical-align:top}"
        "thead th{color:var(--dim);font-weight:600;vertical-align:bottom}"
        "tbody th{font-weight:600}td{white-space:nowrap}td.verdict{white-space:normal;min-width:12rem}"
        ".good{color:var(--good)}.bad{color:var(--bad);font-weight:600}.dim{color:var(--dim)}"
        "figure{margin:1rem 0;max-width:36rem}svg{width:100%;min-width:24rem;height:auto}"
        + STYLE
        + "ul{padding-left:1.2rem}li{overflow-wrap:anywhere}"
    )


def to_html(bench: Bench, changes: Sequence[Change] = ()) -> str:
    """Return the report as a page."""
    body = tag("body", tag("main", joined(_body(bench, changes), Html("\n"))))
    return document(f"Bench: {bench.target}", Html(_style()), body)


def _body(bench: Bench, changes: Sequence[Change]) -> Iterable[Html]:
    yield tag("h1", f"Bench: {bench.target}")
    yield tag("p", " · ".join(f"{name} {value}" for name, value in bench.environment.items()), class_="dim")
    if bench.command:
        yield tag("p", "Made by ", tag("code", bench.command))
    if bench.interrupted:
        yield tag("p", "Interrupted: this is what was done by then.", class_="bad")
    if bench.cases:
        titles, rows = views.article(bench)
        dim = () if bench.cuda else [at for at, title in enumerate(titles) if title.endswith("here")]
        yield tag("h2", "Summary")
        yield _table(titles, rows, "Summary", dim=dim)
    for case in bench.cases:
        yield from _case(bench, case)
    if changes:
        yield tag("h2", "Since before")
        yield _table(("what", "before", "now", "word"), [change.cells for change in changes], "Since before")
    yield tag("h2", "How to read this")
    yield _list((*legend(bench), *gpu_time.legend(bench), *bench.notes))


def _case(bench: Bench, case: Case) -> Iterable[Html]:
    shown, titles = lines(bench, case), headings(bench)
    names = columns(bench, shown)
    yield tag("h2", case.key.capitalize())
    cells = [[line[name] for name in names] for line in shown]
    dim = () if bench.cuda else [at for at, name in enumerate(names) if name in TIMES]
    yield _table([titles[name] for name in names], cells, case.key, judged=True, dim=dim)
    predicted = gpu_time.table(bench, case)
    if predicted:
        yield tag("h3", "Time on GPUs, predicted")
        yield _table(gpu_time.titles(bench), predicted, "Time on GPUs, predicted")
    titled, rows = views.work(bench, case)
    if rows:
        yield tag("h3", f"Throughput on {where(bench)}")
        yield _table(titled, rows, "Throughput", dim=() if bench.cuda else range(len(titled)))
    yield _list(caveats(bench, case))
    steps = int(bench.settings.get("steps", 0))
    for chart in svg.charts(case, steps).values():
        caption = title(chart)
        yield tag("figure", tag("figcaption", caption, class_="dim"), _scroll(Html(chart), caption))
    if case.reasons:
        yield tag("h3", "What limits the speed-up")
        items = [tag("li", tag("b", one.message), f": {one.evidence}; {one.gain}.") for one in case.reasons]
        yield tag("ul", items)


def _table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    about: str,
    *,
    judged: bool = False,
    dim: Sequence[int] = (),
) -> Html:
    head = tag("tr", [tag("th", title, scope="col") for title in titles])
    body = [tag("tr", _cells(row, judged=judged, dim=dim)) for row in rows]
    return _scroll(tag("table", tag("thead", head), tag("tbody", body)), f"Table: {about}")


def _scroll(inside: Html, about: str) -> Html:
    """Return what may be wider than the page in a box that scrolls, with the keyboard too."""
    return tag("div", inside, class_="scroll", tabindex="0", role="group", aria_label=about)


def _cells(row: Sequence[str], *, judged: bool, dim: Sequence[int]) -> Iterable[Html]:
    first, *rest = row
    yield tag("th", first, scope="row")
    for at, cell in enumerate(rest):
        style = "dim" if at + 1 in dim else None
        if judged and at == 0:
            style = "verdict bad" if any(word in cell for word in _BAD) else "verdict"
        yield tag("td", cell, class_=style)


def _list(texts: Iterable[str]) -> Html:
    items = [tag("li", text) for text in texts]
    return tag("ul", items) if items else Html("")
