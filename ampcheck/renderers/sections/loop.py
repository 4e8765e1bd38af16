"""What a script's training loop used, and its loss scale over the steps."""

from collections.abc import Iterator

from ampcheck.diagnose.rules.loop_ranks import first_disagreement, first_overflow
from ampcheck.renderers.scale_curve import change, described, extent, happened, span_words, spans
from ampcheck.renderers.view import Block, Column, Item, Items, Kind, Picture, Section, Table, Tone
from ampcheck.values.loop import Loop, ScaleEvent
from ampcheck.values.report import Report
from ampcheck.values.wording import count, location, scale_words

CODE = Kind.CODE
_OBJECTS = (Column("object"), Column("class", CODE), Column("settings"), Column("line", CODE))
_CHANGES = (
    Column("step", Kind.NUMBER),
    Column("scaler", spare=1),
    Column("what", tone=Tone.UNSURE),
    Column("loss scale"),
    Column("gradient not finite", CODE),
    Column("layer", Kind.MODULE, spare=2),
    Column("begins in", CODE),
    Column("line", CODE),
)


def loop(report: Report) -> Section | None:
    """Return what a script's loop did; None where a step was audited by itself."""
    seen = report.loop
    return (
        None if seen is None else Section("loop", "Training loop", extent(seen), list(_blocks(report, seen)))
    )


def _blocks(report: Report, seen: Loop) -> Iterator[Block]:
    if seen.things:
        yield Table("object", _OBJECTS, [(thing.label, *described(thing)) for thing in seen.things])
    items = [
        *(Item(f"loss scale of {label}: {span_words(seen, label, *ends)}") for label, *ends in spans(seen)),
        *(Item(words, tone=Tone.UNSURE) for words in _by_rank(report)),
    ]
    if items:
        yield Items(items)
    if seen.scales:
        yield Picture("course", "the loss scale over the steps")
        several = len(seen.first_scales) > 1
        yield Table("change", _CHANGES, [_cells(event, several=several) for event in seen.scales])


def _by_rank(report: Report) -> Iterator[str]:
    """Yield where ranks differ in their scales, and which of them overflowed first."""
    apart = first_disagreement(report.ranks)
    if apart is not None:
        step, scaler, scales = apart
        shown = ", ".join(f"{name} {scale_words(scale)}" for name, scale in scales.items())
        yield f"{scaler} differs between ranks from step {count(step)} on: {shown}"
    first = first_overflow(report.ranks)
    if first is not None:
        rank, event = first
        *_, parameter, _, op, line = _cells(event, several=True)
        cause = f" · gradient of {parameter} not finite" if parameter else ""
        begins = f" · begins in {op} {line}".rstrip() if op else ""
        yield f"first to overflow: {rank.name}, step {count(event.step)}{cause}{begins}"


def _cells(event: ScaleEvent, *, several: bool) -> tuple[str, ...]:
    head = (count(event.step), event.scaler if several else "", happened(event), change(event))
    cause = event.cause
    if cause is None:
        return (*head, "", "", "", "")
    more = f" and {count(cause.others)} more" if cause.others else ""
    return (*head, cause.parameter + more, cause.layer, cause.op, location(cause.file, cause.line))
