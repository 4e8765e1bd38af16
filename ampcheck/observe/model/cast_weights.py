"""Casting a model as `.to(dtype)` does, with chosen modules left in FP32."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.structure import in_table, named_modules, own_parameters, roots
from ampcheck.values.modules import within


def cast(model: Any, dtype: torch.dtype, keep: Sequence[str] = ()) -> None:
    """Cast parameters and buffers as `.to(dtype)` does, but for those of modules that are kept in FP32."""
    kept = [module for name, module in named_modules(model) if any(within(name, one) for one in keep)]
    own = [(module, *_own(module)) for module in kept]
    for root in roots(model).values():
        type(root).to(root, dtype)
    for module, parameters, buffers in own:
        for parameter, data in parameters:
            parameter.data = data.float() if data.dtype in HALVES else data
        for name, buffer, data in buffers:
            buffer.data = data.float() if data.dtype in HALVES else data
            module._buffers[name] = buffer


def _own(module: torch.nn.Module) -> tuple[list[Any], list[Any]]:
    """Return the floating-point parameters and buffers of a module with what they hold now."""
    parameters = [(p, p.data) for _, p in own_parameters(module) if p.is_floating_point()]
    buffers = [(n, b, b.data) for n, b in in_table(module, "_buffers") if b.is_floating_point()]
    return parameters, buffers


def state(model: Any) -> Iterator[tuple[str, str, torch.Tensor, bool]]:
    """Yield each floating-point parameter and buffer once: module, name, tensor, whether it is a buffer."""
    seen: set[int] = set()
    for path, module in named_modules(model):
        for table, buffer in ("_parameters", False), ("_buffers", True):
            for name, tensor in in_table(module, table):
                if tensor.is_floating_point() and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield path, name, tensor, buffer


def outermost(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of modules without those that lie inside another."""
    return tuple(one for one in dict.fromkeys(names) if not any(one != o and within(one, o) for o in names))
