"""What ranks send each other in a recorded step: FP32's share of it, without a message of our own.

A second collective would have to be answered by every rank, so none is made. A sum over ranks is what the script
got, plus the difference that this rank's own part makes; the other parts are taken as they are.
"""

from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.source import frames, frames_match, is_user_file

#: Libraries whose operations are messages between processes.
MESSAGES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")
#: Operations that only send, and one that waits: what they are given is what it was.
_UNWRITTEN = frozenset({"send", "isend", "barrier", "monitored_barrier_", "check_for_nan"})
#: The function that a backward runs in.
_ENGINE = "_engine_run_backward"
ENGINE = {"autograd/graph.py": frozenset({_ENGINE})}
#: Where torch's functions for messages are.
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_current_node = torch._C._current_autograd_node


class Sum(NamedTuple):
    """What a rank gives to a sum over ranks."""

    part: torch.Tensor
    result: torch.Tensor | None  #: where the sum is written, None for what the operation returns
    weight: float  #: of a part in it


class Message(NamedTuple):
    """A sum over ranks that is under way."""

    storage: StorageWeakRef
    sent: Sum
    before: torch.Tensor
    wide: torch.Tensor
    factor: float  #: what turns the script's numbers into FP32's
    out: Any  #: of the operation, None as long as nothing is known of it


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that is spread over ranks, any other tensor as it is."""
    part = getattr(tensor, "_local_tensor", None)
    arrives = type(tensor).__name__ == "AsyncCollectiveTensor"
    if part is None and arrives and getattr(tensor, "completed", False):
        part = getattr(tensor, "elem", None)
    return local(part) if isinstance(part, torch.Tensor) else tensor


def sum_of(name: str, args: tuple[Any, ...]) -> Sum | None:
    """Return what a message adds up; None where it does anything else."""
    if name == "allreduce_" and len(args[0]) == 1:
        part = result = args[0][0]
        group, operation = args[1:3]
    elif name == "_reduce_scatter_base_":
        (result, given), (group, operation) = args[:2], args[2:4]
        ranks = torch.distributed.ProcessGroup.unbox(group)
        part = given.view(ranks.size(), -1)[ranks.rank()].view(result.shape)
    elif name == "all_reduce" and args[1] in {"sum", "avg"}:
        weight = 1.0 if args[1] == "sum" else 1.0 / _group(args[2]).size()
        return Sum(args[0], None, weight)
    elif name == "reduce_scatter_tensor" and args[1] in {"sum", "avg"}:
        ranks, size = _group(args[3]), args[2]
        return Sum(args[0].chunk(size)[ranks.rank()], None, 1.0 if args[1] == "sum" else 1.0 / size)
    else:
        return None
    kinds: Any = torch.distributed.ReduceOp
    how = _operation(operation)
    if how == kinds.AVG:
        return Sum(part, result, 1 / torch.distributed.ProcessGroup.unbox(group).size())
    return Sum(part, result, 1.0) if how == kinds.SUM else None


def _operation(boxed: Any) -> Any:
    """Return how the parts of a message become one; None where that is not known.

    Before torch 2.15 it cannot be unboxed: torch's own functions know it, and DDP, which calls none of them, sums up.
    """
    kinds: Any = torch.distributed.ReduceOp
    if hasattr(kinds, "unbox"):
        return kinds.unbox(boxed)
    for frame in frames():
        if frame.f_code.co_filename.endswith(_COLLECTIVES):
            return getattr(frame.f_locals.get("opts"), "reduceOp", None)
        if frame.f_code.co_name == _ENGINE:
            return kinds.SUM
        if is_user_file(frame.f_code.co_filename):
            break
    return None


def _group(named: Any) -> Any:
    """Return a group of ranks by its name."""
    if not isinstance(named, str):
        return named
    groups: Any = torch.distributed.distributed_c10d
    return groups._resolve_process_group(named)


def written_by(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a message is written into; new tensors that it returns left out."""
    if name in _UNWRITTEN or not name.endswith("_"):
        return ()
    return args[:1]


def share(sent: Sum, before: torch.Tensor, wide: torch.Tensor, factor: float) -> torch.Tensor:
    """Return a sum with this rank's part in FP32; `factor` undoes the loss scale.

    A part that was not finite says nothing of the others: what is known then is FP32's part alone.
    """
    assert sent.result is not None
    after, before = (held.to(wide.dtype) * factor for held in (sent.result, before))
    return torch.where(before.isfinite(), after + sent.weight * (wide - before), sent.weight * wide)


def among_ranks() -> bool:
    """Tell whether there are other ranks by now."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def in_backward() -> bool:
    """Tell whether a backward is running, its end included."""
    return _current_node() is not None or frames_match(ENGINE)


def has_arrived(out: Any) -> bool:
    """Tell whether what a collective brings is there, without waiting for it; None is for one that is not."""
    if out is None:
        return False
    for part in out if isinstance(out, (list, tuple)) else (out,):
        if isinstance(part, torch.ScriptObject) and not torch.distributed.Work.unbox(part).is_completed():
            return False
    return True
