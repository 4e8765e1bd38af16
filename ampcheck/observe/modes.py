"""Dispatch modes of ours among those of the script: beneath them, so that they never see what we do.

A mode of the script's may be entered before ours and left while ours is in force, and torch takes away whatever lies
on top then. Beneath them ours is never that one; and what ours runs by itself goes past them.
"""

import functools
from collections.abc import Callable
from enum import IntEnum
from types import MethodType
from typing import Any, ParamSpec, Self, TypeVar

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
#: Modes that could not be taken away: they lay on the stack of another thread, or had been put aside.
_LEFT: list[TorchDispatchMode] = []


class OwnMode(TorchDispatchMode):
    """A dispatch mode of ours."""

    #: Kinds of modes of ours that it lies above.
    over: tuple[type, ...] = ()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The wrapper that this would put around each operation costs as much as recording it.
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotations here

    def __enter__(self) -> Self:
        """Put the mode in force, beneath those of the script."""
        self._begin()
        return self

    def __exit__(self, *_raised: object) -> None:
        """Take the mode away, wherever it lies by now."""
        self._end()

    def _begin(self) -> None:
        _take_left()
        _insert(self, self.over)

    def _end(self) -> None:
        _take_left()
        if _taken(self):
            self.__dict__.pop("__torch_dispatch__", None)  # it would keep itself alive
        else:
            self.step_aside()
            _LEFT.append(self)

    def pause(self) -> bool:
        """Be out of force for a while; tell whether the mode was in force."""
        return _taken(self)

    def resume(self) -> None:
        """Be in force again."""
        _insert(self, self.over)

    def step_aside(self) -> None:
        """Let every operation pass from here on, untouched and unseen."""
        self.__dict__["__torch_dispatch__"] = MethodType(_pass, self)


def _pass(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return func(*args, **(kwargs or {}))


class Way(IntEnum):
    """What becomes of an operation on a subclass; as in _path.c."""

    RECORDED = 0  #: it is one like any other
    APART = 1  #: the subclass takes it apart first, and the parts come here again
    UNSEEN = 2  #: it is torch's own, on tensors without numbers


def way(types: Any) -> Way:
    """Return what is to become of an operation on tensors of some subclasses."""
    if all(kind.__torch_dispatch__ is _NO_DISPATCH for kind in types):
        return Way.RECORDED
    return Way.UNSEEN if traced() else Way.APART


def unseen(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Let a function compute without modes or subclasses of the script's hearing of it."""

    @functools.wraps(function)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return alone


def traced() -> bool:
    """Tell whether torch traces here, on tensors without numbers: what runs is none of the script's computing."""
    return any(_is_torchs(mode) for mode in _get_current_dispatch_mode_stack())


def _insert(mode: TorchDispatchMode, over: tuple[type, ...]) -> None:
    above = []
    for held in reversed(_own_stack()):
        if isinstance(held, over):
            break
        above.append(_pop_mode())
    # Not by `with`: torch would count it among the modes that the script is in, in the wrong order.
    _push_mode(mode)
    for held in reversed(above):
        _push_mode(held)


def _taken(mode: TorchDispatchMode) -> bool:
    stack = _own_stack()
    if not any(held is mode for held in stack):
        return False
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for held in reversed(above):
        _push_mode(held)
    return True


def _take_left() -> None:
    if _LEFT:
        _LEFT[:] = [mode for mode in _LEFT if not _taken(mode)]


def _own_stack() -> list[Any]:
    """Return the modes of this thread, torch's own left out, which lie beneath all others."""
    return [mode for mode in _get_current_dispatch_mode_stack() if not _is_torchs(mode)]


def _is_torchs(mode: Any) -> bool:
    return getattr(mode, "_mode_key", None) is not None
