"""Operations with which a script measures, limits or divides gradients between a backward and a step."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.statistics.memory import tensors_of
from ampcheck.values.loop import Kind

_current_node = torch._C._current_autograd_node
#: Operations that measure. Tests for finite numbers are as good on scaled gradients, and divisions unscale them.
_MEASURES = frozenset(
    """linalg_vector_norm norm _foreach_norm frobenius_norm abs _foreach_abs pow square sum mean std var std_mean
    var_mean max min amax amin aminmax histc histogram dot median quantile""".split()
)
_LIMITS = frozenset(
    "clamp clamp_ clamp_min_ clamp_max_ clip_ _foreach_clamp_min_ _foreach_clamp_max_".split()
)
#: Operations that shorten what was measured before, and unscale what was not.
SHORTENS = frozenset(("mul_", "_foreach_mul_"))
#: Operations that add something to a gradient.
ADDS = frozenset("add_ sub_ addcmul_ addcdiv_ _foreach_add_ _foreach_sub_".split())
#: Operations that may divide by a scale.
_DIVIDES = SHORTENS | frozenset(("div_", "_foreach_div_", "mul", "div", "_foreach_mul", "_foreach_div"))


def use_of(
    func: Any, args: tuple[Any, ...], *, measured: bool = False
) -> tuple[Kind, str, tuple[Any, ...]] | None:
    """Return what kind of use an operation is, its name, and what it is used on; None where it is none.

    What multiplies gradients limits them if gradients were `measured` before.
    """
    if not args:
        return None
    name = name_of(func)
    limits = name in _LIMITS or (measured and name in SHORTENS)
    other = Kind.DIVIDE if name in _DIVIDES and not getattr(args[0], "requires_grad", False) else None
    kind = Kind.READ_GRAD if name in _MEASURES else Kind.CLIP if limits else other
    if kind is None or _current_node() is not None:
        return None
    return kind, name, args[:1]


def name_of(func: Any) -> str:
    """Return the name of an operation."""
    return getattr(getattr(func, "overloadpacket", None), "__name__", "")


def owners(values: Iterable[Any], parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the parameters whose gradients lie where these tensors do, in full or in part."""
    memory = {_memory(tensor) for tensor in tensors_of(values)}
    for parameter in parameters:
        if (grad := gradient_of(parameter)) is not None and _memory(grad) in memory:
            yield parameter


def _memory(tensor: torch.Tensor) -> int:
    """Return what tells one piece of memory from another, also where a tensor is a view of it."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
