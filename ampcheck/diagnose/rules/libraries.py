"""What a user writes where the line that is wrong is a library's: the method or the option that changes it."""

import re
from collections.abc import Sequence

from ampcheck.values.loop import Event

_ON_LIGHTNING = ("def on_before_optimizer_step(self, optimizer):  # called when they are unscaled",)
_CLIPS = (
    *_ON_LIGHTNING,
    "    self.clip_gradients(optimizer, gradient_clip_val=1.0)  # and not in training_step",
)
_READS = (*_ON_LIGHTNING, "    ...  # measure them here, and not in training_step")
_BACKWARD = ('with torch.autocast("cuda", enabled=False):', "    self.manual_backward(loss)")


def clipping_of_library(code: str, library: str) -> tuple[str, ...]:
    """Return the lines that clip where a library scales the loss, in its terms; none where they are not known."""
    if library == "accelerate":
        found = re.search(r"clip_grad_(?:norm|value)_\(.*\)", code)
        return (
            f"accelerator.{found[0] if found else 'clip_grad_norm_(model.parameters(), 1.0)'}  # it unscales first",
        )
    if library == "fabric":
        return ("fabric.clip_gradients(model, optimizer, max_norm=1.0)  # it unscales first",)
    return _CLIPS if library == "lightning" else ()


#: By rule and a part of the path of the library's file: the user's lines instead of those that the rule prints.
_INSTEAD: dict[tuple[str, str], Sequence[str]] = {
    ("AMP401", "lightning"): _CLIPS,
    ("AMP416", "lightning"): _READS,
    ("AMP407", "lightning"): _BACKWARD,
}


def library_of(event: Event) -> str:
    """Return the library that an event's line is of; Fabric is one of its own."""
    if event.file.startswith(("lightning/fabric/", "lightning_fabric/")):
        return "fabric"
    return event.file.partition("/")[0].removeprefix("pytorch_")


def in_library(code: str, event: Event, lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that fix what a library does; where none is known, what to override, and how it should be."""
    top = library_of(event)
    known = _INSTEAD.get((code, top))
    if known is not None:
        return tuple(known)
    return (
        f"# {event.method} of {event.file} does this: override it, or change what calls it at {event.caller}",
        *lines,
    )
