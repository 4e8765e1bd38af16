"""Running chosen modules, or chosen lines of the user's code, in FP32 inside autocast."""

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.model.structure import named_modules
from ampcheck.observe.source import SourceFinder

#: Calls that ask for a dtype: on a promoted line a request for half precision is not granted.
_CASTS = frozenset({"to", "half", "bfloat16", "type", "type_as", "_to_copy"})

Line = tuple[str, int]  #: file as sites show it, and line


@contextmanager
def in_fp32(
    model: Any, modules: Iterable[str] = (), lines: Iterable[Line] = (), back: torch.dtype | None = None
) -> Iterator[None]:
    """Run these modules with autocast off and their inputs in FP32, and these lines likewise.

    With `back` what the modules give is cast to that dtype; without it, it stays in FP32.
    """
    places = frozenset(lines)
    with ExitStack() as stack:
        for module in _found(model, set(modules)):
            stack.enter_context(_forward_in_fp32(module, back))
        if places:
            stack.enter_context(_Lines(places, back))
        yield


def keep_in_fp32(model: Any, modules: Iterable[str], back: torch.dtype | None = None) -> None:
    """Make these modules run with autocast off and their inputs in FP32 from now on."""
    for module in _found(model, set(modules)):
        module.__dict__["forward"] = _in_fp32(module.forward, back)


def lines_in_fp32(lines: Iterable[str]) -> AbstractContextManager[Any]:
    """Return a context in which what torch is asked for on these lines, "file:line", is done in FP32."""
    places = frozenset((file, int(line)) for file, _, line in (text.rpartition(":") for text in lines))
    return _Lines(places) if places else nullcontext()


def _found(model: Any, names: set[str]) -> list[torch.nn.Module]:
    found = dict(named_modules(model))
    unknown = sorted(names - set(found))
    if unknown:
        raise ValueError(
            f"expected modules of the model, got {unknown!r}; it has {len(found)}, such as {list(found)[:5]!r}"
        )
    return list({id(found[name]): found[name] for name in names}.values())


@contextmanager
def _forward_in_fp32(module: torch.nn.Module, back: torch.dtype | None) -> Iterator[None]:
    inner = module.forward
    own = "forward" in module.__dict__
    module.__dict__["forward"] = _in_fp32(inner, back)
    try:
        yield
    finally:
        if own:
            module.__dict__["forward"] = inner
        else:
            del module.__dict__["forward"]


def _in_fp32(inner: Callable[..., Any], back: torch.dtype | None) -> Callable[..., Any]:
    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for device in _devices(args, kwargs):
                stack.enter_context(torch.autocast(device, enabled=False))
            out = inner(*widened(args), **widened(kwargs))
        return out if back is None else _changed(out, frozenset({torch.float32}), back)

    return forward


def _devices(args: Any, kwargs: Any) -> set[str]:
    return {tensor.device.type for _, tensor in tensors_in((args, kwargs), "")} or {"cpu"}


def widened(value: Any) -> Any:
    """Return a nested value with its half-precision tensors in FP32."""
    return _changed(value, HALVES, torch.float32)


def _changed(value: Any, these: frozenset[torch.dtype], dtype: torch.dtype) -> Any:
    """Return a nested value with its tensors of these dtypes in another one; unknown containers stay as they are."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in these else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_changed(inner, these, dtype) for inner in value))
    if type(value) in (list, tuple):
        return type(value)(_changed(inner, these, dtype) for inner in value)
    if type(value) is dict:
        return {key: _changed(inner, these, dtype) for key, inner in value.items()}
    if isinstance(value, OrderedDict):  # the results of transformers and diffusers
        changed = copy.copy(value)
        for key, inner in value.items():
            changed[key] = _changed(inner, these, dtype)
        return changed
    return value


class _Lines(TorchFunctionMode):
    """Runs what torch is asked for on chosen lines in FP32."""

    def __init__(self, places: frozenset[Line], back: torch.dtype | None = None) -> None:
        super().__init__()
        self._places = places
        self._back = back
        self._source = SourceFinder()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # Attributes and in-place calls are about the very tensor they are asked of.
        special = name in {"__get__", "__set__", "__delete__"} or (
            name.endswith("_") and not name.endswith("__")
        )
        if special or self._source.line(self._source.own_spot(2)) not in self._places:
            return func(*args, **kwargs)
        with ExitStack() as stack:
            for device in _devices(args, kwargs):
                stack.enter_context(torch.autocast(device, enabled=False))
            wide = func(*widened(args), **widened(kwargs))
            if name in _CASTS and isinstance(wide, torch.Tensor) and wide.dtype in HALVES:
                return args[0].float()
            return wide if self._back is None else _changed(wide, frozenset({torch.float32}), self._back)
