"""A training loop on the terminal: what the script used, and the loss scale over time."""

from collections.abc import Iterator

from ampcheck.diagnose.rules.loop_ranks import first_disagreement, first_overflow
from ampcheck.renderers.layout import Parts, bullet, text, title
from ampcheck.renderers.scale_curve import change, happened, span_words, spans
from ampcheck.values.loop import Loop, ScaleEvent
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, location, plural, scale_words

#: Changes of the loss scale that are shown one by one.
EVENTS = 6


def loop_lines(report: Report, *, details: bool) -> Parts:
    """Return what is to be said of a script's loop; nothing where there was none."""
    loop = report.loop
    if loop is None or not loop.first_scales:
        return
    skipped = f"{plural(loop.skipped, 'skipped step')} in {plural(loop.steps, 'step')}"
    yield from title("Loss scale over time", f"{_course(loop)} · {skipped}")
    yield from _by_rank(report)
    shown = loop.scales if details else loop.scales[:EVENTS]
    for event in shown:
        yield bullet(
            "!" if event.skipped else "·", _event_line(event), "bold yellow" if event.skipped else "dim"
        )
    if len(loop.scales) > len(shown):
        yield text((f"  … and {plural(len(loop.scales) - len(shown), 'more change')}", "dim"))


def _by_rank(report: Report) -> Parts:
    """Return where ranks differ in their scales, and which of them overflowed first."""
    apart = first_disagreement(report.ranks)
    if apart is not None:
        step, scaler, scales = apart
        shown = ", ".join(f"{clean(name)} {scale_words(scale)}" for name, scale in scales.items())
        yield bullet(
            "!", f"{clean(scaler)} differs between ranks from step {step} on: {shown}", "bold yellow"
        )
    first = first_overflow(report.ranks)
    if first is not None:
        rank, event = first
        yield bullet(
            "!",
            " ".join([f"first to overflow: {clean(rank.name)}, step {event.step}", *_cause(event)]),
            "bold yellow",
        )


def _course(loop: Loop) -> str:
    return ", ".join(
        f"{clean(label)}: {span_words(loop, label, first, last)}" for label, first, last in spans(loop)
    )


def _event_line(event: ScaleEvent) -> str:
    return " ".join([f"step {event.step} {happened(event)}, {change(event)}", *_cause(event)])


def _cause(event: ScaleEvent) -> Iterator[str]:
    cause = event.cause
    if cause is None:
        return
    if cause.parameter:
        yield f"· gradient of {clean(cause.parameter)} not finite"
    if cause.others:
        yield f"(and {plural(cause.others, 'more parameter')})"
    if cause.op:
        yield f"· begins in {clean(cause.op)} {location(cause.file, cause.line)}".rstrip()
