"""The evidence: where the numbers lie, the layers, and where tensors change their dtype."""

from ampcheck.diagnose.landscape import landscape
from ampcheck.diagnose.tables import LayerRow, cast_rows, dtype_rows, layer_rows, scale_curve
from ampcheck.renderers.view import Column, Kind, Picture, Section, Table, Tone
from ampcheck.renderers.words import measured
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.report import Report
from ampcheck.values.trace import CastCount, Phase
from ampcheck.values.wording import (
    ROOT,
    count,
    exponent_range,
    location,
    percent,
    plural,
    power,
    short_count,
    size,
)

NUMBER = Kind.NUMBER
LAYER_COLUMNS = (
    Column("module", Kind.MODULE),
    Column("class", spare=3),
    Column("dtype"),
    Column("activation 2^…"),
    Column("gradient 2^…"),
    Column("underflow forward", NUMBER),
    Column("underflow backward", NUMBER),
    Column("overflow", NUMBER, tone=Tone.BAD),
    Column("casts", NUMBER, spare=2),
    Column("error", NUMBER, spare=1),
)


def gradients(report: Report) -> Section | None:
    """Return where the gradients lie."""
    return _landscape(report, Phase.BACKWARD, "Gradients")


def activations(report: Report) -> Section | None:
    """Return where the results of the forward lie."""
    return _landscape(report, Phase.FORWARD, "Activations")


def _landscape(report: Report, phase: Phase, title: str) -> Section | None:
    if not landscape(report, phase).rows:
        return None
    scaled = phase is Phase.BACKWARD and report.log2_scale
    scale = f" before the loss scale of {power(report.log2_scale)}" if scaled else ""
    about = f"held in {report.precision}, by powers of two{scale}"
    aside = phase is Phase.FORWARD and not any(one.kind.startswith("forward") for one in report.findings)
    picture = Picture(title.lower(), "where the numbers of each layer lie", folded=aside)
    return Section(title.lower(), title, about, (picture,))


def scales(report: Report) -> Section | None:
    """Return what each loss scale would do; nothing where none of them matters."""
    points = scale_curve(report)
    if not points[0].nonzero or (report.precision != "fp16" and not points[0].underflowed.high):
        return None
    about = "gradient elements that would underflow, predicted from the FP32 run"
    picture = Picture("scales", "what would underflow at each loss scale")
    return Section("scales", "Loss scale", about, (picture, measured(report)))


def layers(report: Report) -> Section | None:
    """Return every layer, those with trouble first."""
    rows = layer_rows(report)
    if not rows:
        return None
    troubled = sum(row.troubled for row in rows)
    order = f"{count(troubled)} with trouble, shown first" if troubled else "none with trouble"
    table = Table("layer", LAYER_COLUMNS, [layer_cells(row) for row in rows], troubled)
    return Section("layers", "Layers", f"{count(len(rows))}, {order}", (table,))


def layer_cells(row: LayerRow) -> tuple[str, ...]:
    """Return a layer's texts, '' for what is exactly nothing."""
    return (
        row.module or ROOT,
        row.kind,
        "+".join(row.dtypes if len(row.dtypes) <= 2 else (row.dtypes[0], str(len(row.dtypes) - 1))),  # noqa: PLR2004 - two fit
        exponent_range(row.activations),
        exponent_range(row.gradients),
        percent(row.underflow_forward) if row.underflow_forward else "",
        percent(row.underflow_backward) if row.underflow_backward else "",
        short_count(row.overflowed) if row.overflowed else "",
        short_count(row.casts) if row.casts else "",
        percent(row.error) if row.error else "",
    )


def outputs(report: Report) -> Section | None:
    """Return how far each output of a forward is from FP32's, in each precision, cast and under autocast."""
    rows = [
        (" ".join(name.split("-")), one)
        for name, outcome in report.outcomes.items()
        if "-" in name
        for one in outcome.outputs
    ]
    measures = list(dict.fromkeys(measure for _, one in rows for measure in one.measures))
    columns = (Column("precision"), Column("output", Kind.CODE), *(Column(name, NUMBER) for name in measures))
    cells = [(way, one.name, *(one.measures.get(name, "") for name in measures)) for way, one in rows]
    table = Table("output", columns, cells)
    return Section("outputs", "Outputs", "compared with FP32 on the same inputs", (table,)) if rows else None


def dtypes(report: Report) -> Section | None:
    """Return in what a dry run's operations gave their results."""
    rows = dtype_rows(report)
    titles = ("forward half", "forward FP32", "backward half", "backward FP32", "places")
    columns = [Column("operation", Kind.CODE), *(Column(title, NUMBER) for title in titles)]
    names = ("forward_half", "forward_wide", "backward_half", "backward_wide", "places")
    cells = [(row.op, *(_some(getattr(row, name)) for name in names)) for row in rows]
    about = "elements of operations' results, in half precision and in FP32 or wider"
    return Section("dtypes", "Dtypes", about, (Table("operation", columns, cells),)) if rows else None


def casts(report: Report) -> Section | None:
    """Return where tensors change their dtype, those that write most first."""
    rows = cast_rows(report)
    if not rows:
        return None
    whole = sum((number for _, number in rows), CastCount())
    about = f"{plural(whole.calls, 'call')}, {size(whole.bytes)} written"
    if whole.round_trips:
        about += f", {plural(whole.round_trips, 'call')} only undoing an earlier cast"
    columns = (
        Column("written", NUMBER),
        Column("calls", NUMBER),
        Column("undoing", NUMBER, tone=Tone.UNSURE),
        Column("cast"),
        Column("module", Kind.MODULE),
        Column("line", Kind.CODE),
    )
    cells = [
        (
            size(number.bytes),
            count(number.calls),
            _some(number.round_trips),
            f"{_short(cast.source)} → {_short(cast.target)}",
            cast.module or ROOT,
            location(cast.file, cast.line),
        )
        for cast, number in rows
    ]
    return Section("casts", "Casts", about, (Table("place", columns, cells),))


def _some(number: int) -> str:
    return count(number) if number else ""


def _short(dtype: str) -> str:
    return SHORT_DTYPE.get(dtype, dtype)
