"""Second witnesses for the recorder, without its code: counts by operation, bits, what is installed."""

import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.amp import autocast_mode
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

COPIES = {"_to_copy", "copy_", "clone", "to"}


class Names(TorchDispatchMode):
    """Notes the names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@dataclass
class Counts:
    numel: int = 0
    zeros: int = 0
    infs: int = 0
    nans: int = 0
    amax: float = 0.0
    squares: float = 0.0

    def add(self, tensor: torch.Tensor) -> None:
        if tensor.is_sparse:
            tensor = tensor._values()
        parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        parts = parts.double()
        finite = parts[parts.isfinite()]
        self.numel += parts.numel()
        self.zeros += int((parts == 0).sum())
        self.infs += int(parts.isinf().sum())
        self.nans += int(parts.isnan().sum())
        self.amax = max(self.amax, float(finite.abs().max()) if finite.numel() else 0.0)
        self.squares += float(finite.square().sum())


@dataclass
class Seen:
    """What ran: results by operation and dtype, and every cast."""

    results: dict[tuple[str, str], Counts] = field(default_factory=lambda: defaultdict(Counts))
    casts: list[tuple[torch.dtype, torch.dtype, int]] = field(default_factory=list)
    ops: int = 0


class Witness(TorchDispatchMode):
    """Sees every operation, and adds up the floating-point results that are new numbers."""

    supports_higher_order_operators = True

    def __init__(self, execute: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.seen = Seen()
        self._execute = execute or (lambda func, args, kwargs: func(*args, **kwargs))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl for t in types):
            return NotImplemented
        out = self._execute(func, args, kwargs or {})
        node = torch._C._current_autograd_node()
        self.seen.ops += 1
        if node is not None and node.name() == "torch::autograd::AccumulateGrad":
            return out
        name = str(func).split(".")[1] if "." in str(func) else str(func)
        if name in COPIES:
            source = args[name == "copy_"]
            if source.dtype != out.dtype and _floats(source) and _floats(out):
                self.seen.casts.append((source.dtype, out.dtype, out.numel() * out.element_size()))
            return out
        if "empty" in name or name == "lift_fresh":
            return out
        before = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        mutable = getattr(getattr(func, "_schema", None), "is_mutable", False)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and _floats(leaf) and (mutable or _memory(leaf) not in before):
                self.seen.results[name, str(leaf.dtype).removeprefix("torch.")].add(leaf)
        return out


def _floats(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _memory(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return id(tensor)
    return (tensor.untyped_storage()._cdata, tensor.untyped_storage().data_ptr())


def bits(tensor: torch.Tensor | None) -> Any:
    """Return a tensor's dtype, shape and bytes: equal for equal bits, NaNs and signed zeros included."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        return bits(tensor.indices()), bits(tensor.values())
    raw = tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy()
    return str(tensor.dtype), tuple(tensor.shape), zlib.crc32(memoryview(raw))


def tensors(value: Any) -> Iterable[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def model_bits(model: torch.nn.Module) -> dict[str, Any]:
    """Return the bits of parameters, gradients and buffers by name."""
    found = {f"buffer {name}": bits(tensor) for name, tensor in model.named_buffers()}
    for name, parameter in model.named_parameters():
        found[name] = bits(parameter)
        found[f"grad {name}"] = bits(parameter.grad)
    return found


def random_bits() -> Any:
    numbers = np.random.get_state()  # noqa: NPY002  # the one that user code draws from
    return bits(torch.get_rng_state()), random.getstate(), numbers[1].tobytes(), numbers[2:]


def seed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002


def installed() -> dict[str, Any]:
    """Return everything ampcheck may install: hooks, modes, kernels and patched names of the process."""
    hooks = {
        name: dict(table)
        for name, table in vars(module_hooks).items()
        if name.startswith("_global_") and isinstance(table, dict)
    }
    # Not all keys: torch registers kernels of its own whenever a part of it is first imported.
    keys = ("AutocastCPU", "AutocastCUDA", "AutogradCPU", "Python")
    kernels = {key: tuple(sorted(torch._C._dispatch_get_registrations_for_dispatch_key(key))) for key in keys}
    names = (
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
        torch.get_autocast_gpu_dtype,
        autocast_mode._cast,
    )
    return {
        "hooks": hooks,
        "modes": list(_get_current_dispatch_mode_stack()),
        "kernels": kernels,
        "names": (*names, torch.autocast.__init__, torch.nn.Module.__call__, torch.Tensor.backward),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "stance": getattr(__import__("sys").modules.get("torch._dynamo.eval_frame"), "_stance", None),
    }


def left_behind(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what differs between two answers of `installed`; the compiler may have been loaded meanwhile."""
    return [
        name
        for name in before
        if before[name] != after[name] and (name != "stance" or before[name] is not None)
    ]


def module_hooks_of(model: torch.nn.Module) -> dict[str, int]:
    """Return how many hooks each module holds."""
    return {
        f"{name} {table}": len(held)
        for name, module in model.named_modules()
        for table, held in vars(module).items()
        if table.endswith("_hooks")
    }
