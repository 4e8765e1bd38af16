"""Does the CPU policy cast as CUDA does? One training step of many models, both ways, operator by operator.

    python tests/parity.py --report reports/parity.md

The witness is torch itself: the same model on fake CUDA tensors under CUDA's own autocast kernels, which every build
has, with or without a GPU.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from ampcheck.observe.emulation import cuda_casting
from parity_engine import backward


class Event(NamedTuple):
    """One operator as it was executed: its name and the dtypes that went in and came out."""

    op: str
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]

    def __str__(self) -> str:
        def short(dtypes):
            return ",".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"{self.op}({short(self.inputs)})->({short(self.outputs)})"


class Log(TorchDispatchMode):
    """Notes every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace != "prim":
            self.events.append(Event(func.name().removeprefix("aten::"), _dtypes((args, kwargs)), _dtypes(out)))
        return out


def _dtypes(values: Any) -> tuple[torch.dtype, ...]:
    return tuple(leaf.dtype for leaf in tree_iter(values) if isinstance(leaf, torch.Tensor))


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Turn CUDA's own autocast on; `torch.autocast` refuses where there is no GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)


@contextmanager
def cpu_autocast(dtype):
    with cuda_casting(), torch.autocast("cpu", dtype):
        yield


def fake(module: nn.Module, batch: Any, mode: FakeTensorMode, device: str) -> Any:
    """Replace the parameters and buffers of `module` by fake ones on `device`, and return such a batch."""
    memo: dict[int, Any] = {}
    for owner in module.modules():
        for name, value in owner._parameters.items():
            if value is not None:
                if id(value) not in memo:
                    memo[id(value)] = nn.Parameter(mode.from_tensor(value.detach()).to(device), value.requires_grad)
                owner._parameters[name] = memo[id(value)]
        for name, value in owner._buffers.items():
            if value is not None:
                owner._buffers[name] = mode.from_tensor(value).to(device)
    return tree_map_only(torch.Tensor, lambda leaf: mode.from_tensor(leaf).to(device), batch)


def trace(case, dtype, device) -> list[Event]:
    torch.manual_seed(0)
    module, batch, loss = case.build()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        batch = fake(module, batch, mode, device)
        with Log() as log:
            with (cuda_autocast if device == "cuda" else cpu_autocast)(dtype):
                value = loss(module, batch)
            backward(value)
    return log.events
