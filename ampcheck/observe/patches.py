"""Names of torch replaced for a while, and put back."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

#: A function of torch's, or of the script's, that is replaced.
Original = Callable[..., Any]
_ABSENT = object()
#: Stands in code for what is called.
_INSTEAD = "_ampcheck_instead"
#: Where functions of ours lie.
_OURS = str(Path(__file__).parents[1])


class Patches:
    """Replaced attributes; `restore` puts back what was there, whatever has happened since."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        #: What replaces a function, by identity, and the function.
        self._made: dict[int, tuple[Any, Any]] = {}

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what `make` returns for it, its own or inherited; None where there is none."""
        original = _own(owner, name)
        self._done.append((owner, name, original))
        made = make(getattr(owner, name, None) if original is _ABSENT else original)
        setattr(owner, name, made)
        # One of ours, and not one of torch's that stands in for another.
        ours = isinstance(made, FunctionType) and made.__code__.co_filename.startswith(_OURS)
        if isinstance(owner, ModuleType) and ours:
            self._made[id(made)] = (made, original)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute by a value."""
        self.wrap(owner, name, lambda _: value)

    def put(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        """Replace a function by one that is called with it, and then with what it is given."""
        self.wrap(owner, name, functools.partial(put_in_place, instead))

    def put_under_all_names(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        """Do what `put` does, also where the function is called by a name that was bound before.

        A bound method is such a name. So what the function runs is replaced, and not the function.
        """
        function = _own(owner, name)
        if not isinstance(function, FunctionType):
            self.put(owner, name, instead)
            return
        code = function.__code__
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        for known in ("__kwdefaults__", "__annotations__", "__qualname__", "__doc__", "__module__"):
            setattr(original, known, getattr(function, known))
        self.set(function, "__wrapped__", original)
        # What is called lies in the code itself, which goes with the function wherever that is copied.
        call = functools.partial(instead, original)
        held = tuple(call if one == _INSTEAD else one for one in _hand_on.__code__.co_consts)
        self.set(
            function, "__code__", _hand_on.__code__.replace(co_freevars=code.co_freevars, co_consts=held)
        )

    def before(self, owner: Any, name: str, tell: Callable[..., object]) -> None:
        """Let a function tell of a call, with what it is given, before it is made."""
        self.wrap(owner, name, functools.partial(_telling, tell))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put everything back for a while."""
        now = [(owner, name, _own(owner, name)) for owner, name, _ in self._done]
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


def _own(owner: Any, name: str) -> Any:
    """Return an attribute that is no inherited one; what a function runs is no entry of its dictionary."""
    return (
        getattr(owner, name, _ABSENT) if isinstance(owner, FunctionType) else vars(owner).get(name, _ABSENT)
    )


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


def _hand_on(*args: Any, **kwargs: Any) -> Any:
    instead: Any = "_ampcheck_instead"
    return instead(*args, **kwargs)


def _telling(tell: Callable[..., object], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        tell(*args, **kwargs)
        return original(*args, **kwargs)

    return call
