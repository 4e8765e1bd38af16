"""Names of torch replaced for a while, and put back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


class Patches:
    """Replaced attributes; `restore` puts back what was there, whatever has happened since."""

    def __init__(self) -> None:
        """Begin with nothing replaced."""
        self._done: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what `make` returns for it; one that is not there is made for None."""
        original = vars(owner).get(name, _ABSENT)
        self._done.append((owner, name, original))
        setattr(owner, name, make(None if original is _ABSENT else original))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put everything back for a while."""
        now = [(owner, name, vars(owner)[name]) for owner, name, _ in self._done]
        for owner, name, original in reversed(self._done):
            _put(owner, name, original)
        try:
            yield
        finally:
            for owner, name, value in now:
                setattr(owner, name, value)

    def restore(self) -> None:
        """Put everything back, the last first."""
        while self._done:
            owner, name, original = self._done.pop()
            _put(owner, name, original)


def _put(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)
