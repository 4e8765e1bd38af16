"""Python references of autocast's C++ kernels, for tensors on the CPU.

They run on every operator of a step, so what a schema says is worked out once, when the kernel is made.
"""

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, ClassVar

import torch

from ampcheck.observe.cuda_on_cpu.dispatcher import Kernel, Operator, operator
from ampcheck.observe.cuda_on_cpu.policy import CastPolicy, refusal

_low_dtype = functools.partial(torch.get_autocast_dtype, "cpu")
_Guard = torch._C._ExcludeDispatchKeyGuard
#: Held while torch's cache is cleared, or asked for the cast that stands for ours.
_turn = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows; a thread that holds it is gone in a child
    os.register_at_fork(after_in_child=_turn._at_fork_reinit)  # type: ignore[attr-defined]
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_FLOAT32 = torch.float32
# What autocast may cast: floating point, but never float64.
_ELIGIBLE = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype is not torch.float64
)


def casting_kernel(name: str, policy: CastPolicy) -> Kernel:
    """Return the kernel that treats the operator `name` by `policy`, as CUDA does."""
    if policy is CastPolicy.BANNED:
        return _banned(operator(name), refusal(name))
    return _MAKERS[policy](operator(name))


def clear_in_turn(original: Callable[[], None]) -> None:
    """Clear torch's cache, such that no thread asks for a cast meanwhile.

    Clearing holds torch's lock and waits for Python's, in order to drop what is ours; who asks for the cast of ours
    holds Python's lock and waits for torch's.
    """
    with _turn:
        original()
    weight_casts.forget()  # a recording may keep what they are tied to a little longer


class _Casts(dict[int, tuple["weakref.ref[torch.Tensor]", torch.Tensor]]):
    """Low-precision copies of weights by the identity of the weight."""

    __slots__ = ("__weakref__",)


class _WeightCasts:
    """Autocast's cache of weight casts, which lives exactly as long as torch's own.

    Torch's cache cannot be read from Python, and nothing tells when it is cleared: leaving the outermost
    autocast does it, and `torch.clear_autocast_cache()`. So a small cast of ours is kept in it, and the
    autograd node of that cast is the only owner of our entries: both go together.
    """

    def __init__(self) -> None:
        self._entries: Callable[[], _Casts | None] = lambda: None
        self._native = torch.library.get_kernel("aten::addmm", "AutocastCPU")

    def cast(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the one low-precision copy of `weight` in this autocast region."""
        entries = self._entries()
        if entries is None:
            entries = self._anchored()
        found = entries.get(id(weight))
        if found is not None and found[0]() is weight:
            return found[1]
        with torch.enable_grad():  # the copy may be made under no_grad and used again outside of it
            copy = weight.to(dtype)
        entries[id(weight)] = (weakref.ref(weight), copy)
        return copy

    def forget(self) -> None:
        """Drop the copies that the kernels keep while autocast is on."""
        entries, self._entries = self._entries(), lambda: None
        if entries is not None:
            entries.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Begin without copies; those that there were are there again afterwards."""
        kept, self._entries = self._entries(), lambda: None
        try:
            yield
        finally:
            self.forget()
            if kept is not None:
                self._entries = weakref.ref(kept)

    def _anchored(self) -> _Casts:
        """Return new entries that die with torch's cache, unseen by any dispatch mode."""
        entries = _Casts()
        with _turn, torch._C._DisableTorchDispatch(), torch.inference_mode(mode=False), torch.enable_grad():
            leaf = torch.zeros(1, 1, dtype=_FLOAT32, device="cpu", requires_grad=True)
            # addmm saves nothing for its backward when only its first argument needs a gradient, so that
            # hooks on saved tensors do not see this either.
            constant = leaf.detach()
            out = self._native.call_boxed(torch._C._dispatch_keys(leaf), leaf, constant, constant)
        out.grad_fn.next_functions[0][0].metadata["ampcheck"] = entries
        self._entries = weakref.ref(entries)
        return entries


weight_casts = _WeightCasts()


def _cast(tensor: torch.Tensor, dtype: torch.dtype, low: torch.dtype) -> torch.Tensor:
    """Return what C++ `cached_cast` returns for a tensor on the CPU."""
    source = tensor.dtype
    if source is dtype or source not in _ELIGIBLE or not tensor.is_cpu:
        return tensor
    if (
        source is _FLOAT32
        and dtype is low
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    ):
        return weight_casts.cast(tensor, dtype)
    return tensor.to(dtype)


class _Slots:
    """Where the tensors are in an operator's positional arguments."""

    __slots__ = ("lists", "tensors", "weighed")

    def __init__(self, op: Operator) -> None:
        kinds = [str(slot.type) for slot in op._schema.arguments if not slot.kwarg_only]
        # From the last to the first: compilers for x86 evaluate the arguments of a call in that order, so
        # that is the order of CUDA's casts.
        last_first = list(enumerate(kinds))[::-1]
        self.tensors = [at for at, kind in last_first if kind in {"Tensor", "Optional[Tensor]"}]
        self.lists = [at for at, kind in last_first if kind == "List[Tensor]"]
        # Optional tensors are cast, but have no say in the widest dtype.
        self.weighed = [at for at, kind in enumerate(kinds) if kind in {"Tensor", "List[Tensor]"}]

    def cast(self, args: tuple[Any, ...], dtype: torch.dtype, low: torch.dtype) -> list[Any]:
        """Return `args` with the tensors among them cast."""
        out = list(args)
        for at in self.tensors:
            if at < len(out):
                tensor = out[at]
                if tensor is not None and tensor.dtype is not dtype:
                    out[at] = _cast(tensor, dtype, low)
        for at in self.lists:
            if at < len(out):
                out[at] = [_cast(item, dtype, low) for item in out[at]]
        return out


def _lower(op: Operator) -> Kernel:
    run, slots = op._op, _Slots(op)

    def lower(*args: Any, **kwargs: Any) -> Any:
        low = _low_dtype()
        with _Guard(_AUTOCAST):
            return run(*slots.cast(args, low, low), **kwargs)

    return lower


def _fp32(op: Operator) -> Kernel:
    run, slots = op._op, _Slots(op)

    def fp32(*args: Any, **kwargs: Any) -> Any:
        with _Guard(_AUTOCAST):
            return run(*slots.cast(args, _FLOAT32, _low_dtype()), **kwargs)

    return fp32


def _fp32_set_dtype(op: Operator) -> Kernel:
    run = op._op
    at = next(at for at, slot in enumerate(op._schema.arguments) if slot.name == "dtype")

    def fp32_set_dtype(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if first.dtype in _ELIGIBLE and first.is_cpu:
            if len(args) > at:
                args = (*args[:at], args[at] or _FLOAT32, *args[at + 1 :])
            elif kwargs.get("dtype") is None:
                kwargs["dtype"] = _FLOAT32
        with _Guard(_AUTOCAST):
            return run(*args, **kwargs)

    return fp32_set_dtype


def _fp32_append_dtype(op: Operator) -> Kernel:
    overload = op._schema.overload_name
    target = operator(f"{op._schema.name}.{'ScalarOpt' if overload == 'Scalar' else overload}_dtype")._op
    defaults = [slot.default_value for slot in op._schema.arguments]

    def fp32_append_dtype(*args: Any) -> Any:
        first = args[0]
        dtype = _FLOAT32 if first.dtype in _ELIGIBLE and first.is_cpu else first.dtype
        with _Guard(_AUTOCAST):
            return target(*args, *defaults[len(args) :], dtype=dtype)

    return fp32_append_dtype


def _promote(op: Operator) -> Kernel:
    run, slots = op._op, _Slots(op)

    def promote(*args: Any, **kwargs: Any) -> Any:
        low = _low_dtype()
        widest = low
        for at in slots.weighed:
            for tensor in args[at] if isinstance(args[at], list) else (args[at],):
                widest = _wider(widest, tensor, low)
        with _Guard(_AUTOCAST):
            return run(*slots.cast(args, widest, low), **kwargs)

    return promote


def _wider(widest: torch.dtype, tensor: torch.Tensor, low: torch.dtype) -> torch.dtype:
    dtype = tensor.dtype
    if dtype not in _ELIGIBLE or not tensor.is_cpu:
        return widest
    if widest is _FLOAT32 or dtype is _FLOAT32:
        return _FLOAT32
    if dtype is low:
        return low
    raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")  # in C++'s words


def _half(op: Operator) -> Kernel:
    run, slots = op._op, _Slots(op)

    def half(*args: Any, **kwargs: Any) -> Any:
        with _Guard(_AUTOCAST):
            # No low dtype, so nothing is kept: cuDNN's kernel copies the weights at every call, too.
            return run(*slots.cast(args, torch.float16, low=_FLOAT32), **kwargs)

    return half


class Refusals:
    """What becomes of an operation that autocast refuses: an error, or FP32 where somebody hears of it."""

    heard: ClassVar[Callable[[RuntimeError], None] | None] = None


def _banned(op: Operator, message: str) -> Kernel:
    in_fp32 = _fp32(op)

    def banned(*args: Any, **kwargs: Any) -> Any:
        heard = Refusals.heard
        if heard is None:
            raise RuntimeError(message)
        heard(RuntimeError(message).with_traceback(_stack()))
        return in_fp32(*args, **kwargs)

    return banned


def _stack() -> TracebackType | None:
    """Return the running frames as a traceback, as if the innermost had raised."""
    frame: FrameType | None = sys._getframe(2)
    trace: TracebackType | None = None
    while frame is not None:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace


_MAKERS: dict[CastPolicy, Callable[[Operator], Kernel]] = {
    CastPolicy.LOWER: _lower,
    CastPolicy.FP32: _fp32,
    CastPolicy.FP32_SET_DTYPE: _fp32_set_dtype,
    CastPolicy.FP32_APPEND_DTYPE: _fp32_append_dtype,
    CastPolicy.PROMOTE: _promote,
    CastPolicy.HALF: _half,
}
