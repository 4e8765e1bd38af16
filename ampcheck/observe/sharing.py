"""What ranks send each other in a recorded step: FP32's share of it, without a message of our own.

A second collective would have to be answered by every rank, so none is made. A sum over ranks is what the script
got, plus the difference that this rank's own part makes; the other parts are taken as they are.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.observe.source import frames_match

#: Libraries whose operations are messages between processes.
MESSAGES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


#: The function that a backward runs in.
ENGINE = {"autograd/graph.py": frozenset({"_engine_run_backward"})}
_current_node = torch._C._current_autograd_node


@dataclass(frozen=True, slots=True)
class Sum:
    """What a rank gives to a sum over ranks."""

    part: torch.Tensor
    result: torch.Tensor  #: where the sum is written
    weight: float  #: of a part in it


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that is spread over ranks, any other tensor as it is."""
    part = getattr(tensor, "_local_tensor", None)
    return part if isinstance(part, torch.Tensor) else tensor


def sum_of(name: str, args: tuple[Any, ...]) -> Sum | None:
    """Return what a message adds up; None where it does anything else."""
    if name == "allreduce_" and len(args[0]) == 1:
        part = result = args[0][0]
        group, operation = args[1:3]
    elif name == "_reduce_scatter_base_":
        (result, given), (group, operation) = args[:2], args[2:4]
        ranks = torch.distributed.ProcessGroup.unbox(group)
        part = given.view(ranks.size(), -1)[ranks.rank()].view(result.shape)
    else:
        return None
    kinds: Any = torch.distributed.ReduceOp
    how = kinds.unbox(operation)
    if how == kinds.AVG:
        return Sum(part, result, 1 / torch.distributed.ProcessGroup.unbox(group).size())
    return Sum(part, result, 1.0) if how == kinds.SUM else None


def share(sent: Sum, before: torch.Tensor, wide: torch.Tensor, scale: float) -> torch.Tensor:
    """Return a sum with this rank's part in FP32, where nothing is scaled.

    A part that was not finite says nothing of the others: what is known then is FP32's part alone.
    """
    factor = 1.0 / scale if in_backward() else 1.0
    after, before = (held.to(wide.dtype) * factor for held in (sent.result, before))
    return torch.where(before.isfinite(), after + sent.weight * (wide - before), sent.weight * wide)


def in_backward() -> bool:
    """Tell whether a backward is running, its end included."""
    return _current_node() is not None or frames_match(ENGINE)


def is_message(func: Any) -> bool:
    """Tell whether an operation goes to other ranks."""
    return getattr(func, "namespace", "") in MESSAGES


def arrived(out: Any) -> None:
    """Wait for what a collective brings."""
    for part in out if isinstance(out, (list, tuple)) else (out,):
        if isinstance(part, torch.ScriptObject):
            torch.distributed.Work.unbox(part).wait()
