"""A bench as one HTML page: no script, nothing loaded from elsewhere, readable in the light and in the dark."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from ampcheck.bench import gpu_time, svg
from ampcheck.bench.compare import Change
from ampcheck.bench.result import Bench, Case
from ampcheck.bench.table import TIMES, caveats, columns, headings, legend, lines
from ampcheck.values.wording import clean


def _style() -> str:
    light, dark = svg.roles(svg.ROLES), svg.roles(svg.DARK_ROLES)
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
        "figure{margin:1rem 0;max-width:46rem}svg{width:100%;min-width:34rem;height:auto}"
        "svg text{font:12px system-ui,sans-serif;"
        "fill:var(--ink)}" + svg.MARKS + "ul{padding-left:1.2rem}"
        "li{overflow-wrap:anywhere}" + light + "@media(prefers-color-scheme:dark){" + dark + "}"
    )


def to_html(bench: Bench, changes: Sequence[Change] = ()) -> str:
    """Return the report as a page."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    body = "<main>\n" + "\n".join(_body(bench, changes)) + "\n</main>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Bench: {_safe(bench.target)}</title>\n<style>{style}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _body(bench: Bench, changes: Sequence[Change]) -> Iterable[str]:
    yield f"<h1>Bench: {_safe(bench.target)}</h1>"
    yield f'<p class="dim">{" · ".join(f"{_safe(k)} {_safe(v)}" for k, v in bench.environment.items())}</p>'
    if bench.command:
        yield f"<p>Made by <code>{_safe(bench.command)}</code></p>"
    if bench.interrupted:
        yield '<p class="bad">Interrupted: what was done until then.</p>'
    for case in bench.cases:
        yield from _case(bench, case)
    if changes:
        yield "<h2>Since before</h2>"
        yield _table(("what", "before", "now", "word"), [change.cells for change in changes], "Since before")
    yield "<h2>How to read this</h2>"
    yield _list((*legend(bench), *gpu_time.legend(bench), *bench.notes))


def _case(bench: Bench, case: Case) -> Iterable[str]:
    shown, titles = lines(bench, case), headings(bench)
    names = columns(bench, shown)
    yield f"<h2>{_safe(case.key).capitalize()}</h2>"
    cells = [[getattr(line, name) for name in names] for line in shown]
    yield _table(
        [titles[name] for name in names],
        cells,
        case.key,
        judged=True,
        dim=() if bench.cuda else [at for at, name in enumerate(names) if name in TIMES],
    )
    predicted = gpu_time.table(bench, case)
    if predicted:
        yield "<h3>Time on GPUs, predicted</h3>"
        yield _table(gpu_time.titles(bench), predicted, "Time on GPUs, predicted")
    yield _list(caveats(bench, case))
    for chart in (svg.ratios(case), svg.memory(case), svg.curves(case, int(bench.settings.get("steps", 0)))):
        if chart:
            caption = chart.partition("<title>")[2].partition("</title>")[0]
            yield f'<figure><figcaption class="dim">{caption}</figcaption>{_scroll(chart, caption)}</figure>'
    if case.reasons:
        yield "<h3>What stands in the way of a speed-up</h3>"
        items = [
            f"<li><b>{_safe(reason.message)}</b>: {_safe(reason.evidence)}; {_safe(reason.gain)}.</li>"
            for reason in case.reasons
        ]
        yield f"<ul>{''.join(items)}</ul>"


def _table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    about: str,
    *,
    judged: bool = False,
    dim: Sequence[int] = (),
) -> str:
    head = "".join(f'<th scope="col">{_safe(title)}</th>' for title in titles)
    body = "".join(f"<tr>{_cells(row, judged=judged, dim=dim)}</tr>" for row in rows)
    return _scroll(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", f"Table: {about}")


def _scroll(inside: str, about: str) -> str:
    """Return what may be wider than the page in a box that scrolls, with the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{_safe(about)}">{inside}</div>'


def _cells(row: Sequence[str], *, judged: bool, dim: Sequence[int]) -> str:
    first, *rest = row
    out = f'<th scope="row">{_safe(first)}</th>'
    for at, cell in enumerate(rest):
        style = ' class="dim"' if at + 1 in dim else ""
        if judged and at == 0:
            bad = any(
                word in cell
                for word in ("fails", "worse", "not finite", "lost", "does not run", "out of memory")
            )
            style = ' class="verdict bad"' if bad else ' class="verdict"'
        out += f"<td{style}>{_safe(cell)}</td>"
    return out


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{_safe(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _safe(text: str) -> str:
    return escape(clean(text))
