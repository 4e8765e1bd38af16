"""Numbers that a script casts before it calls a model: a recording that begins with the step sees the cast."""

from dataclasses import replace
from typing import Any

from ampcheck.observe.reference.given import GIVEN
from ampcheck.observe.script.recording import Recorded


class CastsBefore:
    """Lets recordings begin with the step, once, and from then on where that shows what was cast."""

    def __init__(self) -> None:
        self._tried = self._trying = False

    def again(self, tape: Any, done: Recorded) -> bool:
        """Have the next step recorded from its beginning, and tell whether it will be.

        That is where numbers in half precision were given to this one, and where threads have made some for it.
        """
        given = _given(done)
        if self._trying and not given:  # it has shown the casts: what they cost is in this step
            tape.recorded = [_without_given(one) for one in tape.recorded]
            return False
        if self._trying:  # they are older than that
            self._trying = tape.before_calls = False
        if not (given or done.entered or tape.workers.heard) or tape.what_if is not None:
            return False
        if self._tried or tape.before_calls:
            return False
        self._tried = self._trying = True
        tape.unheard(done.last + 1)
        return True


def _given(done: Recorded) -> bool:
    return any(what.endswith(GIVEN) for what in done.low.not_audited)


def _without_given(done: Recorded) -> Recorded:
    """Return a step that no longer names the numbers given to it: another step shows what their cast costs."""
    seen = {what: count for what, count in done.low.not_audited.items() if not what.endswith(GIVEN)}
    return replace(done, low=replace(done.low, not_audited=seen))
