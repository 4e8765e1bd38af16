"""Scalers that are made again and again where one would do."""

from collections.abc import Iterator
from itertools import groupby, pairwise

from ampcheck.diagnose.rules.loop_state import active_scalers, loop_finding, loop_of
from ampcheck.diagnose.rules.makers import maker_of
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import Event, Kind, Loop, LoopObject
from ampcheck.values.maker import BEGINS_SCALE
from ampcheck.values.report import Report
from ampcheck.values.wording import plural, scale_words

#: Part of all steps from which on it is an error that later scalers skip them.
_TOO_OFTEN = 1 / 4
#: Times that a scale by hand begins again, from which on it is made anew; and how far it must have come down.
_FEW, _FELL = 3, 4
_SAME = ", for the same optimizer"
#: How a scaler that takes the place of another goes on where that was.
_LOADED = (
    'checkpoint["scaler"] = scaler.state_dict()  # where the optimizer is saved',
    'scaler.load_state_dict(checkpoint["scaler"])  # behind this line',
    "# where nothing is resumed: a smaller init_scale, as far as the scale came down",
)


def scaler_made_anew(report: Report) -> list[Finding]:
    """A new GradScaler takes the place of the one before, and begins at the first scale again.

    What it finds: several scalers made at one line that step the same optimizer, one after the other, or optimizers
    that are made anew as well, as by a run that is resumed from its checkpoints; or a loss scale of the script's own
    that begins again and again.

    Why it matters: the scale, and the count of steps until it grows, are what a scaler has learned. A new one begins at
    65536: its first steps are skipped until it has come down again, and a larger scale is never reached.

    What to do: make one scaler beside the optimizer, before the loop over epochs, and pass it on.

    Example: def train_one_epoch(model, optimizer, loader): scaler = GradScaler().

    When to ignore it: when the loss changes so much between the parts that what was learned is of no use. It is an
    error where the later scalers skip more than a quarter of all steps.
    """
    loop = loop_of(report)
    found = [
        _made_anew(loop, file, line, labels, _SAME) for (file, line, _), labels in made_again(loop).items()
    ]
    resumed = [] if found else [_made_anew(loop, *place, labels) for place, labels in _resumed(loop).items()]
    # Of models that are trained one after the other, each has a scaler of its own.
    return found + [one for one in resumed if one.severity is Severity.ERROR] + _by_hand(report, loop)


def made_again(loop: Loop) -> dict[tuple[str, int, tuple[str, ...]], list[str]]:
    """Return the scalers that are made at one line for the same optimizers, where they are several."""
    made: dict[tuple[str, int, tuple[str, ...]], dict[str, Event]] = {}
    for scaler, event in _steps(loop):
        made.setdefault((scaler.file, scaler.line, event.targets), {}).setdefault(scaler.label, event)
    return {place: list(labels) for place, labels in made.items() if len(labels) > 1}


def _steps(loop: Loop) -> Iterator[tuple[LoopObject, Event]]:
    """Yield the steps through scalers that are in use."""
    for _, event in loop.sequence(1):
        thing = loop.thing(event.thing) if event.kind is Kind.SCALER_STEP else None
        if thing is not None and thing.label in active_scalers(loop):
            yield thing, event


def _resumed(loop: Loop) -> dict[tuple[str, int], list[str]]:
    """Return the scalers that are made at one line, one after the other, and each steps an optimizer of its own."""
    made: dict[tuple[str, int], list[tuple[str, tuple[str, ...]]]] = {}
    for scaler, event in _steps(loop):
        made.setdefault((scaler.file, scaler.line), []).append((scaler.label, event.targets))
    runs = {place: [step for step, _ in groupby(steps)] for place, steps in made.items()}
    return {
        place: [label for label, _ in steps]
        for place, steps in runs.items()
        if _FEW <= len(steps) == len({label for label, _ in steps}) == len({targets for _, targets in steps})
    }


def _by_hand(report: Report, loop: Loop) -> list[Finding]:
    """Return a finding on a loss scale of the script's own that begins anew again and again."""
    events = [event for event in loop.scales if loop.thing(event.scaler) is None]
    first = events[0].before if events else 0.0
    again = sum(
        after.before == first and _FELL * one.after <= first for one, after in pairwise(events)
    )  # no step has let it grow
    skips = sum(event.skipped for event in events)
    if again < _FEW or skips <= _TOO_OFTEN * (loop.steps + skips):
        return []
    made = maker_of(report, BEGINS_SCALE)
    return [
        loop_finding(
            "AMP417 scaler-made-anew",
            Severity.ERROR,
            f"the script's own loss scale begins {plural(again + 1, 'time')}, at {scale_words(first)} again: "
            f"{plural(skips, 'step')} skipped until it has come down",
            [Event(Kind.SCALE, name="scale", file=made.file, line=made.line) if made else Event(Kind.SCALE)],
            [
                f"# keep one scale for all of them, or begin at {scale_words(min(one.after for one in events))}"
            ],
            {"scalers": again + 1, "skipped": skips},
        )
    ]


def _made_anew(loop: Loop, file: str, line: int, labels: list[str], same: str = "") -> Finding:
    again = sum(len(loop.skips(label)) for label in labels[1:])
    begins = scale_words(next(iter(loop.first_scales.values()), 0.0))
    skips = (
        f", and {again:,} of {plural(loop.steps, 'step')} are skipped until it has come down" if again else ""
    )
    return loop_finding(
        "AMP417 scaler-made-anew",
        Severity.ERROR if again > _TOO_OFTEN * loop.steps else Severity.WARNING,
        f"{len(labels)} scalers are made here, one after the other{same}: each begins at {begins} again{skips}",
        [Event(Kind.SCALE, name="GradScaler", file=file, line=line)],
        ["# once, where the optimizer is made:", 'scaler = torch.amp.GradScaler("cuda")']
        if same
        else _LOADED,
        {"scalers": len(labels), "skipped": again},
    )
