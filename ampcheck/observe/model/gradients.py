"""Gradients that the running thread can read.

Torch breaks where a thread reads `parameter.grad` while another one lets it go: for a moment the parameter still holds
what is gone. So where several threads train, each reads the gradients of those parameters that it trains itself.
"""

import weakref
from collections.abc import Iterable
from threading import get_ident
from typing import Any

import torch

#: Whether there was a thread beside the one that is watched: else nobody needs to be told who trains.
several = False
#: Threads that have begun a backward or an optimizer's step, and have not ended.
_training: set[int] = set()
#: By parameter: the parameter, and the thread that has used or cleared its gradient last, where several train.
_trainers: dict[int, tuple[weakref.ref[Any], int]] = {}


def others_begin(watched: int) -> None:
    """Take note that there are others than the thread that is watched, which may have trained before."""
    global several  # noqa: PLW0603  # asked in every step, where a call is too much
    several = True
    if isinstance(watched, int):  # none while an audit runs, and nobody is heard
        _training.add(watched)


def forget() -> None:
    """Know of no thread: a watch is over."""
    global several  # noqa: PLW0603
    several = False
    _training.clear()
    _trainers.clear()


def trains_here(owner: Any = None) -> None:
    """Take note that the running thread trains: it uses or clears the gradients of an optimizer or a model."""
    thread = get_ident()
    _training.add(thread)
    if len(_training) > 1 and owner is not None:
        _trainers.update((id(one), (weakref.ref(one), thread)) for one in _parameters(owner))


def thread_ends() -> None:
    """Take note that the running thread trains no more."""
    thread = get_ident()
    _training.discard(thread)
    for key in [key for key, (_, trainer) in list(_trainers.items()) if trainer == thread]:
        _trainers.pop(key, None)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a parameter; None where another thread may be about to let it go."""
    here = {get_ident()}
    known, trainer = _trainers.get(id(parameter), (None, 0))
    own = trainer in here and known is not None and known() is parameter
    if own or _training <= here:  # no other thread runs between this and the reading
        return parameter.grad
    return None


def _parameters(owner: Any) -> Iterable[Any]:
    if isinstance(owner, torch.nn.Module):
        return owner.parameters()
    return (one for group in getattr(owner, "param_groups", ()) for one in group["params"])
