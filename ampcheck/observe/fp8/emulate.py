"""Linear layers whose three GEMMs round their operands as a recipe says, wherever the dispatcher meets them.

`emulated` puts kernels for linear, mm, addmm, bmm and baddbmm on autocast's dispatch key, so it reaches what swapped
modules miss: attention's projections, tied heads, einsum, experts in one tensor, a subclass's own forward. A product
counts as a layer's if one of its operands is a parameter; those of two activations stay in bf16, as in the libraries.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.library import fallthrough_kernel

from ampcheck.observe.cuda_on_cpu.dispatcher import Kernel, install, operator, remove
from ampcheck.observe.fp8.casts import Rounded, rounded
from ampcheck.observe.fp8.delayed import Memory
from ampcheck.observe.fp8.owners import Layer, Owners
from ampcheck.observe.model.modules import ModuleTracker, untold
from ampcheck.values.recipes import Recipe

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_MATRIX = 2
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SEED = 0x5EED

#: Told of every operand: the layer, its GEMM, its name and how it was rounded.
Told = Callable[[Layer, str, str, Rounded], None]


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays in bf16."""

    modules: frozenset[str] = frozenset()
    gemms: frozenset[str] = frozenset()  #: in every layer
    gemms_of: frozenset[tuple[str, str]] = frozenset()  #: modules with a GEMM of theirs
    only: frozenset[str] | None = None  #: if given, every module but these


@dataclass(slots=True)
class Emulation:
    """One recipe at work on one model."""

    recipe: Recipe
    kept: Kept = Kept()
    memory: Memory = field(default_factory=Memory)
    shown: Told | None = None
    layers: dict[Layer, tuple[int, ...]] = field(default_factory=dict)  #: met, with the shape of the weight
    work: Counter[Layer] = field(default_factory=Counter)  #: products of the forward, by layer
    rows: dict[Layer, int] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)  #: what was not rounded, and how often
    generators: dict[torch.device, torch.Generator] = field(default_factory=dict)

    def rounds(self, layer: Layer, gemm: str) -> bool:
        """Tell whether a GEMM of a layer is rounded."""
        kept = self.kept
        if layer.module in kept.modules or gemm in kept.gemms or (layer.module, gemm) in kept.gemms_of:
            return False
        return kept.only is None or layer.module in kept.only

    def operand(self, layer: Layer, gemm: str, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return an operand as a GEMM sees it; the contraction is the last dimension of `x`, in FP32."""
        cast = self.recipe.casts.get((gemm, name))
        if cast is None or not self.rounds(layer, gemm):
            return x
        scale = None if cast.history is None else self.memory.scale((layer, name), x, cast)
        result = rounded(x, cast, scale, self._generator(x.device) if cast.stochastic else None)
        if self.shown is not None:
            self.shown(layer, gemm, name, result)
        return result.values

    def _generator(self, device: torch.device) -> torch.Generator:
        """Return randomness of our own: the user's generators must not move."""
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(_SEED)
        return self.generators[device]


class Product(torch.autograd.Function):
    """y = x w^T and its two GEMMs of the backward, each with rounded operands and summed in FP32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, run: Emulation, layer: Layer) -> torch.Tensor:
        """Multiply, and keep the operands as they came."""
        ctx.run, ctx.layer = run, layer
        ctx.save_for_backward(x, w)
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            a = run.operand(layer, "fprop", "input", x.float())
            b = run.operand(layer, "fprop", "weight", w.float())
            return (a @ b.mT).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        """Multiply the gradient with the weight and with the input."""
        run, layer = ctx.run, ctx.layer
        x, w = ctx.saved_tensors
        dx = dw = None
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            dy = grad.float()
            if ctx.needs_input_grad[0]:
                a = run.operand(layer, "dgrad", "grad_output", dy)
                b = run.operand(layer, "dgrad", "weight", w.float().mT.contiguous())
                dx = (a @ b.mT).to(x.dtype)
            if ctx.needs_input_grad[1]:
                a = run.operand(layer, "wgrad", "grad_output", dy.mT.contiguous())
                b = run.operand(layer, "wgrad", "input", x.float().mT.contiguous())
                dw = (a @ b.mT).to(w.dtype)
        return dx, dw, None, None


@contextmanager
def emulated(model: Any, device: str, run: Emulation) -> Iterator[Emulation]:
    """Let the linear layers of a model run by a recipe wherever autocast is on, until exit."""
    tracker = ModuleTracker(model)
    kernels = _Kernels(run, Owners(tracker), device).by_name()
    tracker.install(untold)
    try:
        library = install(_KEYS[device], kernels)
        try:
            yield run
        finally:
            remove(library)
    finally:
        tracker.remove()


class _Kernels:
    """The kernels of one emulation."""

    def __init__(self, run: Emulation, owners: Owners, device: str) -> None:
        self._run, self._owners, self._device = run, owners, device
        self._guard = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEYS[device]))

    def by_name(self) -> dict[str, Kernel]:
        """Return the kernels by operator: what is made of others is let through to those."""
        return {
            "aten::linear": self._linear,
            "aten::mm": lambda a, b: self._product("mm", a, b),
            "aten::bmm": lambda a, b: self._product("bmm", a, b),
            "aten::addmm": lambda bias, a, b, **rest: self._sum("mm", bias, a, b, rest),
            "aten::baddbmm": lambda bias, a, b, **rest: self._sum("bmm", bias, a, b, rest),
            "aten::matmul": fallthrough_kernel,
            "aten::einsum": fallthrough_kernel,
            "aten::chain_matmul": fallthrough_kernel,
            "aten::linalg_multi_dot": fallthrough_kernel,
        }

    def _linear(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        layer = self._owners.of(w) or self._owners.running()
        if not self._takes(x, w) or w.dim() != _MATRIX:
            return self._plain("linear", x, w, bias)
        low = torch.get_autocast_dtype(self._device)
        with torch._C._ExcludeDispatchKeyGuard(self._guard):
            y = self._multiplied(x.to(low).reshape(-1, x.shape[-1]), w.to(low), layer)
            y = y.reshape(*x.shape[:-1], w.shape[0])
            return y if bias is None else y + bias.to(low)

    def _product(self, name: str, a: torch.Tensor, b: torch.Tensor) -> Any:
        left, right = self._owners.of(a), self._owners.of(b)
        if (left is None) == (right is None) or not self._takes(a, b):
            return self._plain(name, a, b)
        low = torch.get_autocast_dtype(self._device)
        with torch._C._ExcludeDispatchKeyGuard(self._guard):
            if right is not None:
                return self._multiplied(a.to(low), b.to(low).mT, right)
            assert left is not None
            return self._multiplied(b.to(low).mT, a.to(low), left).mT

    def _sum(
        self, name: str, bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rest: dict[str, Any]
    ) -> Any:
        if (self._owners.of(a) is None) == (self._owners.of(b) is None) or not self._takes(a, b):
            return self._plain({"mm": "addmm", "bmm": "baddbmm"}[name], bias, a, b, **rest)
        y = self._product(name, a, b)
        with torch._C._ExcludeDispatchKeyGuard(self._guard):
            beta, alpha = rest.get("beta", 1), rest.get("alpha", 1)
            return (y if alpha == 1 else alpha * y) + (bias if beta == 1 else beta * bias).to(y.dtype)

    def _multiplied(self, x: torch.Tensor, w: torch.Tensor, layer: Layer) -> torch.Tensor:
        run = self._run
        run.layers.setdefault(layer, tuple(w.shape))
        run.work[layer] += x.numel() * w.shape[-2]
        run.rows[layer] = x.shape[-2]
        y: torch.Tensor = Product.apply(x, w, run, layer)
        return y

    def _takes(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Tell whether a product is one that a recipe rounds; count those it cannot."""
        if not (a.is_floating_point() and b.is_floating_point()) or torch.float64 in (a.dtype, b.dtype):
            return False
        if type(a) not in _PLAIN or type(b) not in _PLAIN or not (a.numel() and b.numel()):
            self._run.left["products of tensor subclasses, left as they are"] += type(a) not in _PLAIN
            return False
        if torch._C._functorch.maybe_current_level() is not None:
            self._run.left["products inside vmap or grad, left in bf16"] += 1
            return False
        return not self._owners.recurrent

    def _plain(self, name: str, *args: Any, **rest: Any) -> Any:
        """Run an operator as autocast does."""
        low = torch.get_autocast_dtype(self._device)
        with torch._C._ExcludeDispatchKeyGuard(self._guard):
            return operator(f"aten::{name}")._op(*(_lowered(value, low) for value in args), **rest)


def _lowered(value: Any, low: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is torch.float64:
        return value
    return value.to(low)
