"""One clip for the gradients of several optimizers, which a scaler has looked at before that."""

import ast
import re
from collections.abc import Iterator

from ampcheck.diagnose.rules.loop_state import label, loop_finding, rounds_of
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import Event, Kind, Loop, ScaleEvent
from ampcheck.values.wording import clean

#: Rounds in which every optimizer is skipped, at the end, from which on nothing trains any more.
_FEW = 4


def clipped_together(loop: Loop) -> list[Finding]:
    """Return findings on a clip whose norm is not finite where one optimizer's gradients overflow.

    It makes those of the others NaN, and these are stepped. Known where nothing but skipped steps comes after a round
    in which just one of them was skipped.
    """
    before = _last_before_all_are_skipped(loop)
    if before is None or before.cause is None:
        return []
    own = before.cause.optimizer
    clips = {event.location: event for event in _of_several(loop) if own in event.targets}
    return [
        loop_finding(
            "AMP403 step-beside-scaler",
            Severity.ERROR,
            f"{clean(event.name)} clips several optimizers at once: where the gradients of one overflow, those of the "
            "others become NaN here and are stepped, because scaler.unscale_ has checked them before",
            [event],
            _one_by_one(loop, event),
        )
        for event in clips.values()
    ]


def _last_before_all_are_skipped(loop: Loop) -> ScaleEvent | None:
    """Return the skip of the round before the first of those in which everything is skipped, to the end."""
    optimizers, skips = len(label(loop, "optimizer")), [event for event in loop.scales if event.skipped]
    at = len(skips) - 1
    while at > 0 and skips[at].step - skips[at - 1].step <= 1:
        at -= 1
    if at <= 0 or len(skips) - at < _FEW * optimizers or skips[-1].step < loop.steps - 1:
        return None
    return skips[at - 1] if skips[at].step - skips[at - 1].step <= optimizers else None


def _of_several(loop: Loop) -> Iterator[Event]:
    """Yield clips of gradients of which several optimizers' were unscaled before."""
    for events in rounds_of(loop).values():
        unscaled = set[str]()
        for event in events:
            if event.kind is Kind.UNSCALE:
                unscaled.update(event.targets)
            elif event.kind is Kind.CLIP and len(unscaled.intersection(event.targets)) > 1:
                yield event


def _one_by_one(loop: Loop, clip: Event) -> list[str]:
    """Return lines that clip the weights of each optimizer by themselves, with the script's names where it has them."""
    events = (event for _, event in loop.sequence(1) if event.kind is Kind.UNSCALE and event.code)
    found = [re.search(r"unscale_\(([\w.\[\]]+)\)", event.code) for event in events]
    names = dict.fromkeys(match[1] for match in found if match is not None)
    func, limit = clip.name, "..."
    try:
        call = ast.parse(clip.code, mode="eval").body
    except SyntaxError:
        call = None
    if isinstance(call, ast.Call) and len(call.args) > 1:
        func, limit = ast.unparse(call.func), ", ".join(map(ast.unparse, call.args[1:]))
    return [
        f"for one in ({', '.join(names) or '...'}):  # each by itself",
        '    weights = [p for group in one.param_groups for p in group["params"]]',
        f"    {func}(weights, {limit})",
    ]
