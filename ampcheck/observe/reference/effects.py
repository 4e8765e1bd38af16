"""What an operation does beside computing its results: what it writes, draws, sends, and what nobody knows of it."""

from math import copysign, inf
from typing import Any, NamedTuple

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.reference.attention import beside, in_fp32
from ampcheck.observe.reference.sharing import MESSAGES
from ampcheck.values.op_kinds import LIMITS

#: Arguments that an operation writes although its schema does not say so: running averages.
_WRITES = dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4))
#: Libraries whose operations compute and do nothing else. Any other may count, print, or send: it runs once.
_PURE = frozenset({"aten", "prims", "prim", "fsdp", "torchvision", "quantized"})


#: What half precision's own largest number limits, or one a little below float16's, is not limited in FP32.
_LARGEST = {torch.finfo(dtype).max for dtype in HALVES}
_NEARLY = 64_000


class Effects(NamedTuple):
    """What there is to know of an overload."""

    view: bool  #: its results share their input's storage, or hold nothing yet
    written: tuple[int | str, ...]  #: positions, or names of keyword arguments, that it writes
    random: bool
    name: str
    silent: bool = False  #: it returns nothing: all it does is write
    message: bool = False  #: it goes to other ranks
    once: bool = False  #: nobody knows what else it does


#: Of each overload seen, by identity, which hashing goes through C++ for: itself, to keep that, and its rule.
_KNOWN: dict[int, tuple[Any, Effects]] = {}


def written(known: Effects, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return what an operation is given to write into."""
    held = [args[at] for at in known.written if isinstance(at, int) and at < len(args)]
    return held + [kwargs[at] for at in known.written if isinstance(at, str) and at in kwargs]


def is_attention(name: str) -> bool:
    """Tell whether an operation is fused attention, or its gradient."""
    return name.startswith("_scaled_dot_product")


def repeatable(name: str, args: tuple[Any, ...]) -> bool:
    """Tell whether an operation that may draw random numbers does not draw any here."""
    return is_attention(name) and not any(type(arg) is float and arg > 0 for arg in args)


def is_limited(name: str, args: tuple[Any, ...]) -> bool:
    """Tell whether an operation cuts off what half precision does not hold."""
    return name in LIMITS and any(
        one is not free for one, free in zip(args, unlimited(name, args), strict=True)
    )


def unlimited(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments for FP32, without the limits of half precision."""
    if name not in LIMITS:
        return args
    whole = isinstance(args[0], torch.Tensor) and not args[0].is_floating_point()
    return args if whole else tuple(map(_free, args))


def _free(one: Any) -> Any:
    """Return infinity for a limit of half precision, anything else as it is."""
    limits = type(one) in (int, float) and (
        abs(one) in _LARGEST or _NEARLY <= abs(one) <= torch.finfo(torch.float16).max
    )
    return copysign(inf, one) if limits else one


def run_in_fp32(rule: Effects, func: Any, given: tuple[Any, Any, Any], out: Any, factor: float) -> Any:
    """Return the FP32 results of an operation, with the script's random draw; None where they are all draw.

    `given` are its arguments, those in FP32, and the keyword arguments; `factor` is what turns results into FP32's.
    """
    args, wide_args, kwargs = given
    draws = not repeatable(rule.name, args)
    if draws and is_attention(rule.name):
        return beside(func, args, wide_args, kwargs, out, factor)
    return dropped(rule.name, wide_args, out) if draws and rule.random else in_fp32(func, wide_args, kwargs)


def dropped(name: str, args: tuple[Any, ...], out: Any) -> Any:
    """Return the FP32 result of an operation with the script's random draw; None where it is all draw."""
    if name != "native_dropout" or not isinstance(out, tuple):
        return None
    values, p, train = args[:3]
    kept = values * out[1] * (1.0 / (1.0 - p)) if p < 1 else values * out[1]
    return (kept if train or train is None else values.clone(), out[1])


def effects(func: Any) -> Effects:
    """Return what an overload does, looked up once."""
    known = _KNOWN.get(id(func)) or _KNOWN.setdefault(id(func), (func, _effects_of(func)))
    return known[1]


def _effects_of(func: Any) -> Effects:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Effects(view=True, written=(), random=False, name=str(func))
    space, _, name = schema.name.rpartition("::")
    returns = [ret for ret in schema.returns if "Tensor" in str(ret.type)]
    views = [ret for ret in returns if ret.alias_info is not None and not ret.alias_info.is_write]
    written: list[int | str] = [
        slot.name if slot.kwarg_only else at for at, slot in enumerate(schema.arguments) if slot.is_write
    ]
    written += [at for at in _WRITES.get(name, ()) if at not in written]
    unwritten = name.startswith(("empty", "new_empty")) or name in {"set_", "resize_"}
    # Views that their schema does not call so share a storage all the same.
    alias = name in {"_unsafe_view", "_reshape_alias"} or name.startswith("unsafe_")
    whole = bool(returns) and len(views) == len(returns)
    view = unwritten or alias or whole or not (returns or written)
    drawn = any(slot.name == "generator" for slot in schema.arguments)
    return Effects(
        view and space not in MESSAGES,
        tuple(written),
        drawn or torch.Tag.nondeterministic_seeded in func.tags,
        name,
        not schema.returns,
        message=space in MESSAGES,
        once=space not in _PURE,
    )
