"""What stands between torch's names and a watcher, and lets the watcher go when the watch is over.

A script may have kept a name of torch's that was replaced while it was watched: it goes on working, and tells nobody.
"""

from typing import Any


class _Silence:
    """Takes anything and answers nothing."""

    def __getattr__(self, name: str) -> "_Silence":
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __contains__(self, _: object) -> bool:
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        pass


_SILENCE = _Silence()


class Ear:
    """Tells a watcher what it hears, until it is closed."""

    __slots__ = ("_hears",)

    def __init__(self, watcher: Any) -> None:
        object.__setattr__(self, "_hears", watcher)

    def __getattr__(self, name: str) -> Any:
        """Return what the watcher has."""
        return getattr(self._hears, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the watcher has."""
        setattr(self._hears, name, value)

    def turn(self, watcher: Any = _SILENCE) -> Any:
        """Hear for another watcher, or for none; return the one before."""
        before = self._hears
        object.__setattr__(self, "_hears", watcher)
        return before
