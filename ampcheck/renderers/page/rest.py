"""The end of the page: casts, what was not audited, what was assumed, and where the step ran."""

from collections.abc import Mapping

from ampcheck.diagnose.tables import cast_rows, dtype_rows
from ampcheck.renderers.page.elements import Html, tag
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.report import Report
from ampcheck.values.trace import CastCount
from ampcheck.values.wording import ROOT, clean, count, location, plural, size

#: Casts shown at once; the others wait behind a line to open.
_FIRST = 10


def casts(report: Report, rows: Mapping[str, int]) -> Html | None:
    """Return where tensors change their dtype, those that write most first."""
    every = cast_rows(report)
    if not every:
        return None
    whole = sum((number for _, number in every), CastCount())
    about = f"{plural(whole.calls, 'call')}, {size(whole.bytes)} written"
    if whole.round_trips:
        about += f", {plural(whole.round_trips, 'call')} only undoing an earlier cast"
    lines = []
    for cast, number in every:
        row = rows.get(cast.module)
        name = clean(cast.module) or ROOT
        lines.append(
            tag(
                "tr",
                tag("td", size(number.bytes), class_="number"),
                tag("td", count(number.calls), class_="number"),
                tag("td", f"{_short(cast.source)} → {_short(cast.target)}"),
                tag("td", tag("a", name, href=f"#m{row}") if row is not None else name, class_="path"),
                tag("td", tag("code", location(cast.file, cast.line)) if cast.file else ""),
                tag("td", count(number.round_trips) if number.round_trips else "", class_="number"),
            )
        )
    return tag(
        "section",
        tag("h2", "Casts ", tag("small", about), id="casts-title"),
        _table(lines[:_FIRST], "Casts that write most"),
        tag(
            "details",
            tag("summary", plural(len(lines) - _FIRST, "more place")),
            _table(lines[_FIRST:], "All other casts"),
        )
        if len(lines) > _FIRST
        else None,
        id="casts",
        aria_labelledby="casts-title",
    )


def dtypes(report: Report) -> Html:
    """Return in what a dry run's operations gave their results."""
    rows = dtype_rows(report)
    titles = ("Operation", "Forward, half", "Forward, FP32", "Backward, half", "Backward, FP32", "Places")
    cells = [
        (row.forward_half, row.forward_wide, row.backward_half, row.backward_wide, row.places) for row in rows
    ]
    heads = [
        tag("th", title, scope="col", class_="number" if at else None) for at, title in enumerate(titles)
    ]
    lines = [
        tag("tr", tag("td", clean(row.op)), [tag("td", count(cell), class_="number") for cell in line])
        for row, line in zip(rows, cells, strict=True)
    ]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", lines), class_="plain")
    name = "Dtypes: elements of operations' results, in half precision and in FP32 or wider"
    return tag(
        "section",
        tag("h2", name, id="dtypes-title"),
        tag("div", table, class_="wide", tabindex="0", role="region", aria_label=name),
        id="dtypes",
        aria_labelledby="dtypes-title",
    )


def _table(lines: list[Html], label: str) -> Html:
    titles = ("Written", "Calls", "Cast", "Module", "Line", "Undo an earlier one")
    numbers = (0, 1, 5)
    heads = [
        tag("th", title, scope="col", class_="number" if index in numbers else None)
        for index, title in enumerate(titles)
    ]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", lines), class_="plain")
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label=label)


def limits(report: Report) -> Html:
    """Return what was not audited, what was assumed, and where the step ran."""
    low = report.low
    seen = f"{plural(low.operations, 'operation')} seen, {plural(low.measured, 'tensor')} measured"
    missed = sorted(report.not_audited.items(), key=lambda item: -item[1])
    items = [tag("li", tag("b", f"{count(times)}×"), " ", clean(what)) for what, times in missed]
    notes = [tag("li", clean(note)) for note in report.notes]
    known = [
        part
        for name, text in report.environment.items()
        for part in (tag("dt", clean(name)), tag("dd", clean(text)))
    ]
    return tag(
        "div",
        tag(
            "section",
            tag("h2", "Not audited ", tag("small", seen), id="missed-title"),
            tag("ul", items)
            if items
            else tag("p", "Nothing was left out." if low.sites else "Nothing was recorded."),
            aria_labelledby="missed-title",
        ),
        tag("section", tag("h2", "Notes", id="notes-title"), tag("ul", notes), aria_labelledby="notes-title")
        if notes
        else None,
        tag(
            "section",
            tag("h2", "Environment", id="environment-title"),
            tag("dl", known),
            aria_labelledby="environment-title",
        )
        if known
        else None,
        class_="limits",
        id="limits",
    )


def _short(dtype: str) -> str:
    return SHORT_DTYPE.get(dtype, clean(dtype))
