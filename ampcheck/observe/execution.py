"""How an operation is run, and what is known of one that raised."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from ampcheck.observe.tally import Origin

#: What an operation is called with.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Execute = Callable[[OpOverload, Args, Kwargs], Any]

#: Of a parameter or gradient: the module that owns it, its slot there, and itself.
State = tuple[str, str, torch.Tensor]


def run_op(func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Run an operation as it is."""
    return func(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Failed:
    """An operation that raised."""

    error: int  #: identity of the exception
    op: str
    origin: Origin | None  #: the line of the forward, where the operation was one of its backward
