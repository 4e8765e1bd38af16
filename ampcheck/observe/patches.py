"""Names of torch replaced for a while, and put back."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

_ABSENT = object()
#: Where functions of ours lie.
_OURS = str(Path(__file__).parents[1])


class Patches:
    """Replaced attributes; `restore` puts back what was there, whatever has happened since."""

    def __init__(self) -> None:
        """Begin with nothing replaced."""
        self._done: list[tuple[Any, str, Any]] = []
        self._made: dict[
            int, tuple[Any, Any]
        ] = {}  #: what replaces a function, by identity, and the function

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what `make` returns for it; one that is not there is made for None."""
        original = vars(owner).get(name, _ABSENT)
        self._done.append((owner, name, original))
        made = make(None if original is _ABSENT else original)
        setattr(owner, name, made)
        # One of ours, and not one of torch's that stands in for another.
        if (
            isinstance(owner, ModuleType)
            and isinstance(made, FunctionType)
            and made.__code__.co_filename.startswith(_OURS)
        ):
            self._made[id(made)] = (made, original)

    def put(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        """Replace a function by one that is called with it, and then with what it is given."""
        self.wrap(owner, name, functools.partial(put_in_place, instead))

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
        self._take_back()

    def _take_back(self) -> None:
        """Put functions back, too, where a module that was imported meanwhile has bound them."""
        made, self._made = self._made, {}
        made = {key: pair for key, pair in made.items() if _is_held(pair)}
        if not made:
            return
        for module in list(sys.modules.values()):
            held = getattr(module, "__dict__", None)
            if not isinstance(held, dict):
                continue
            for name in [name for name, value in list(held.items()) if id(value) in made]:
                replacement, original = made[id(held[name])]
                if held[name] is replacement:
                    held[name] = original


def _is_held(pair: tuple[Any, Any]) -> bool:
    """Say whether anything else than the pair refers to its first: mostly nothing does, and no module is searched."""
    bare = (object(), None)
    return sys.getrefcount(pair[0]) > sys.getrefcount(bare[0])


def _put(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def put_in_place(instead: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one with the original, and then with what it is given."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(original, *args, **kwargs)

    return call


def before(tell: Callable[..., object], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that tells of a call, with what it is given, and then makes it."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        tell(*args, **kwargs)
        return original(*args, **kwargs)

    return call
