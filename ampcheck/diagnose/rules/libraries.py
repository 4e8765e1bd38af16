"""What a user writes where the line that is wrong is a library's: the method or the option that changes it."""

from collections.abc import Sequence

from ampcheck.values.loop import Event

_ON_LIGHTNING = ("def on_before_optimizer_step(self, optimizer):  # called when they are unscaled",)
_CLIPS = (
    *_ON_LIGHTNING,
    "    self.clip_gradients(optimizer, gradient_clip_val=1.0)  # and not in training_step",
)
_READS = (*_ON_LIGHTNING, "    ...  # measure them here, and not in training_step")
_BACKWARD = ('with torch.autocast("cuda", enabled=False):', "    self.manual_backward(loss)")

#: By rule and a part of the path of the library's file: the user's lines instead of those that the rule prints.
_INSTEAD: dict[tuple[str, str], Sequence[str]] = {
    ("AMP401", "lightning"): _CLIPS,
    ("AMP416", "lightning"): _READS,
    ("AMP407", "lightning"): _BACKWARD,
}


def in_library(code: str, event: Event, lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that fix what a library does; where none is known, what to override, and how it should be."""
    top = event.file.partition("/")[0].removeprefix("pytorch_")
    known = _INSTEAD.get((code, top))
    if known is not None:
        return tuple(known)
    return (
        f"# {event.method} of {event.file} does this: override it, or change what calls it at {event.caller}",
        *lines,
    )
