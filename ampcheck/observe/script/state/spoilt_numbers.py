"""Numbers of a script that became NaN in a skipped step: it may have read an infinite gradient norm, and kept it.

A GradScaler keeps the weights from such a step. What the script makes of its gradients by itself, an average of their
norms for one, nobody keeps from it.
"""

from ampcheck.observe.script.state.naming import not_a_number

#: Steps after a skip at which the script's variables are looked at.
_LATER = 8
#: Skips after which that is done.
_LOOKS = 3


class SpoiltNumbers:
    """Looks at a script's variables some steps after those that were skipped."""

    def __init__(self) -> None:
        self._due, self._looks = -1, _LOOKS
        self._known: set[str] | None = None  #: were NaN before any step
        self.found: dict[str, None] = {}  #: what the script calls the numbers

    def begins(self) -> None:
        """Look at the variables once, before the first step that may be skipped."""
        if self._known is None:
            self._known = set(not_a_number())

    def skipped(self, step: int) -> None:
        """Take note of a step that is skipped."""
        self._due = step + _LATER if self._looks else -1

    def step_ends(self, step: int) -> None:
        """Look at the variables, if it is time for that."""
        if 0 <= self._due <= step:
            self._due, self._looks = -1, self._looks - 1
            self.found |= dict.fromkeys(name for name in not_a_number() if name not in (self._known or ()))
