"""The path of an operation in C, where that was built, and what it asks of Python.

`Path` of _path.c stands in for the recorder's `__torch_dispatch__`, for `Seen`, `Nodes` and the CPU's rows of a
`StepRecord`. It does what is common, one plain tensor after the other, and calls back for the rest. Both ways write
the same trace.
"""

import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from ampcheck.observe.model.modules import ModuleTracker, tensors_in
from ampcheck.observe.model.structure import own_tensors
from ampcheck.observe.native import NATIVE
from ampcheck.observe.ops import OpKind
from ampcheck.observe.tally import BACKWARD_OP, FORWARD_OP, Origin
from ampcheck.values.trace import Phase

if TYPE_CHECKING:
    from ampcheck.observe.recorder import Recorder

#: As in _path.c.
_KINDS = (OpKind.SKIP, OpKind.VIEW, OpKind.SAME, OpKind.CAST, OpKind.COPY, OpKind.MEASURE)
#: By the codes of _exphist.h.
_DTYPES = ("float32", "float64", "float16", "bfloat16")
#: Operation of what is measured at a module: entering, leaving, made there, and its gradient, in the backward.
_SIDES = ("", "", FORWARD_OP, BACKWARD_OP)
_PHASES = (Phase.FORWARD, Phase.BACKWARD)
#: What we ask of torch is not for function modes of the script's.
_NO_FUNCTIONS = torch._C.DisableTorchFunction


def compiled_path(recorder: "Recorder", execute: Callable[..., Any] | None) -> Any:
    """Return what handles a recorder's operations in C, or None where it was not built or does not help."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if NATIVE is None or exchange is None or not on_cpu(recorder.tracker.modules()):
        return None
    found = NATIVE.Path(exchange, _asked(recorder, execute), torch.get_num_threads())
    found.name(filled(recorder.tracker))
    return found


def filled(tracker: ModuleTracker) -> list[tuple[torch.nn.Module, str, int]]:
    """Return modules with their paths and the number of positional arguments that fill them."""
    known: dict[type, int] = {}
    found = []
    for module, path in tracker.named():
        kind = type(module)
        if kind not in known:
            known[kind] = _filled_by(kind)
        found.append((module, path, -1 if "forward" in module.__dict__ else known[kind]))
    return found


def _filled_by(kind: type) -> int:
    """Return by how many positional arguments a call of such a module leaves no room for keywords, -1 if by none.

    Keywords are looked for in a frame of torch's, which takes longer than all else at a module's border.
    """
    held = (vars(base) for base in kind.__mro__)
    forward = next((names["forward"] for names in held if "forward" in names), None)
    if not isinstance(forward, FunctionType):
        return -1
    code = forward.__code__
    open_ended = code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARKEYWORDS | inspect.CO_VARARGS)
    return -1 if open_ended else code.co_argcount - 1


def on_cpu(modules: Iterable[torch.nn.Module]) -> bool:
    """Tell whether the tensors of modules are on the CPU: elsewhere measuring is launched from Python."""
    return all(tensor.is_cpu for module in modules for _, tensor in own_tensors(module))


def _asked(recorder: "Recorder", execute: Callable[..., Any] | None) -> Sequence[Any]:
    """Return the arguments of Path, in its order: a recorder's methods, with the words that C has for things."""
    mine: Any = weakref.proxy(recorder)  # C does not keep it alive

    def call(method: str) -> Callable[..., Any]:
        found = attrgetter(method)

        def ask(*given: Any) -> Any:
            return found(mine)(*given)

        return ask

    def plan(func: Any) -> tuple[str, int, int, Any]:
        plan = mine.plan(func)
        # What an overload's own call does, less a frame.
        own = func._op if type(func) is OpOverload else func
        return plan.name, _KINDS.index(plan.kind), int(plan.rounds), own

    def origin(code: int, lasti: int) -> Any:
        return mine.origins.of((code, lasti) if code else None, Phase.FORWARD)

    def note(func: Any, args: Any, out: Any) -> None:
        with _NO_FUNCTIONS():
            mine.note(func, args, out)

    def measure(origin: Origin, backward: int, op: str, slot: str, value: Any) -> None:
        with _NO_FUNCTIONS():
            for place, tensor in tensors_in(value, slot):
                mine.tally.measure(origin, _PHASES[backward], op, place, tensor)

    def copied(op: str, origin: Origin, backward: int, source: Any, out: Any) -> None:
        with _NO_FUNCTIONS():
            mine.tally.copied(op, origin, _PHASES[backward], source, out)

    return (
        execute,
        *map(call, ("way", "raised", "gave_way")),
        plan,
        call("source.classify"),
        origin,
        call("origins.lost"),
        *(note, measure, copied),
        *map(call, ("tally.constants", "crossed", "follow_gradient", "gradient")),
        torch.is_grad_enabled,
        torch._C._current_autograd_node,
        torch._C._autograd._get_sequence_nr,
        *(torch.Tensor, torch.nn.Parameter),
        *(_PHASES, _DTYPES, _SIDES),
    )
