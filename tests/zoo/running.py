"""Runs a case as CUDA autocast would, on a CPU, and writes down what breaks where.

No part of ampcheck's recorder or rules takes part: shared are only the casting kernels and the float32
accumulation, which have witnesses of their own.
"""

import contextlib
import importlib.util
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import WideCompute

CASES = Path(__file__).parent / "cases"
LOW = (torch.float16, torch.bfloat16)

# What these write is chosen by the user, who may mean an infinity: it is no result of arithmetic.
CHOSEN = {
    *("fill_", "full", "full_like", "new_full", "masked_fill", "masked_fill_", "where", "constant_pad_nd"),
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
}
# Zero only where a factor is zero, or never: a zero from inputs without zeros was underflowed.
NEVER_ZERO = {
    "mul",
    "mul_",
    "div",
    "div_",
    "_to_copy",
    "exp",
    "sigmoid",
    "_softmax",
    "sqrt",
    "reciprocal",
    "pow",
}


class Birth(NamedTuple):
    """An operation that made infinities or NaN from finite numbers."""

    module: str
    op: str
    phase: str


@dataclass(slots=True)
class Run:
    """What one step of a case did."""

    loss: float = math.nan
    grads: dict = field(default_factory=dict)  #: unscaled, by parameter
    error: str = ""
    raised_in: str = ""
    births: list = field(default_factory=list)
    underflowed: Counter = field(default_factory=Counter)  #: zeros made from non-zeros, by (module, op)
    results: dict = field(default_factory=dict)  #: of the forward, by (module, op, how many before)
    output_grads: dict = field(default_factory=dict)  #: unscaled gradients of module outputs

    @property
    def broken(self) -> bool:
        """Say whether the loss or a gradient is not finite, or the step raised."""
        return bool(self.error) or not math.isfinite(self.loss) or self.nan_grad

    @property
    def nan_grad(self) -> bool:
        """Say whether a gradient is not finite."""
        return any(not bool(grad.isfinite().all()) for grad in self.grads.values())


def load(path: Path):
    """Import a case file."""
    spec = importlib.util.spec_from_file_location(f"zoo_case_{path.stem}", path)
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    return case


def run(case, dtype=None, log2_scale=0, fp32=(), *, watch=False) -> Run:
    """Run one step, `fp32` modules with autocast off on float32 inputs, without a dtype all in float32."""
    model, batch = case.model(), case.batch()
    if dtype is None:
        model.float()
    modules = dict(model.named_modules())
    for name in fp32:
        promote(modules[name])
    done = Run()
    seen = Watch({module: name for name, module in modules.items() if name}, done, 2.0**-log2_scale)
    torch.manual_seed(2)
    with cuda_casting(), WideCompute(), seen.hooks(), seen if watch else contextlib.nullcontext():
        try:
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = case.loss(model, batch)
            done.loss = float(loss.detach())
            seen.backward = True
            (loss.float() * 2.0**log2_scale).backward()
        except (RuntimeError, TypeError) as error:
            done.error, done.raised_in = str(error).split("\n")[0], seen.where() or seen.last
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    dense = {name: grad.to_dense() if grad.is_sparse else grad for name, grad in grads.items()}
    done.grads = {name: grad.float() * 2.0**-log2_scale for name, grad in dense.items()}
    return done


def promote(module) -> None:
    """Run a module with autocast off and its low-precision inputs in float32."""
    inner = module.forward

    def forward(*args, **kwargs):
        with torch.autocast("cpu", enabled=False):
            return inner(*_floated(args), **_floated(kwargs))

    module.forward = forward


def train(case, dtype=None, steps=20) -> tuple[dict, dict]:
    """Train a case, and return its parameters and buffers before and after, in float32."""
    model, batch = case.model(), case.batch()
    if dtype is None:
        model.float()
    optimizer = case.optimizer(model)
    before = _state(model)
    torch.manual_seed(2)
    with cuda_casting(), WideCompute():
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = case.loss(model, batch)
            loss.float().backward()
            optimizer.step()
            if hasattr(case, "after_step"):
                case.after_step(model)
    return before, _state(model)


def _state(model) -> dict:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: t.detach().float().clone() for name, t in tensors if t.is_floating_point()}


class Watch(TorchDispatchMode):
    """Fills a Run with births and underflows, by module."""

    def __init__(self, names, into: Run, unscale=1.0) -> None:
        super().__init__()
        self.names, self.into, self.unscale = names, into, unscale
        self.counts = Counter()
        self.stack, self.node_modules = [""], {}
        self.backward = False
        self.last = ""

    @contextlib.contextmanager
    def hooks(self):
        """Follow which module is running."""

        def enter(module, _args):
            if module in self.names:
                self.stack.append(self.names[module])

        def leave(module, _args, output):
            if module in self.names:
                self.stack.pop()
                self.follow(self.names[module], output)

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def follow(self, name, output) -> None:
        """Keep the gradient of a module's output."""

        def keep(grad):
            self.into.output_grads[name] = grad.detach().float() * self.unscale

        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(keep)

    def where(self) -> str:
        """Return the module that is running, in the backward the one whose forward made the running node."""
        if not self.backward or len(self.stack) > 1:
            return self.stack[-1]
        node = torch._C._current_autograd_node()
        return self.node_modules.get(node._sequence_nr(), "") if node is not None else ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        op, module = func._schema.name.split("::")[1], self.where()
        self.last = module
        if not self.backward:
            self.node_modules[torch.autograd._get_sequence_nr() - 1] = module
        inputs = [t for t in _tensors((args, kwargs)) if t.is_floating_point()]
        healthy = op not in CHOSEN and all(bool(t.isfinite().all()) for t in inputs)
        zeros = None if self.backward else _zeros_due(op, args, kwargs)
        out = func(*args, **kwargs)
        results = [t for t in _tensors(out) if t.is_floating_point()]
        if healthy and any(not bool(t.isfinite().all()) for t in results):
            self.into.births.append(Birth(module, op, "backward" if self.backward else "forward"))
        for result in [] if self.backward else results:
            self.into.results[module, op, self.counts[module, op]] = result.detach().float().clone()
            self.counts[module, op] += 1
        if zeros is not None and len(results) == 1 and results[0].dtype in LOW:
            lost = int(((results[0] == 0) & ~zeros).sum())
            self.into.underflowed[module, op] += lost
        return out


def _zeros_due(op, args, kwargs):
    """Return where the result of an elementwise operation is zero in exact arithmetic, None if not known."""
    floats = [t for t in _tensors(args) if t.is_floating_point()]
    if not floats:
        return None
    scalars = [
        a for a in (*args[1:], *kwargs.values()) if isinstance(a, float | int) and not isinstance(a, bool)
    ]
    if op in NEVER_ZERO:
        factors = floats[:1] if op.startswith("div") else floats
        zeros = torch.zeros((), dtype=torch.bool)
        for factor in factors if op not in {"exp", "sigmoid", "_softmax"} else ():
            zeros = zeros | (factor == 0)
        return zeros
    if op in {"add", "add_"} and len(floats) == 1 and any(scalars):
        return floats[0] != 0
    if op in {"clamp", "clamp_min"} and any(s > 0 for s in scalars):
        return torch.zeros((), dtype=torch.bool)
    return None


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value.coalesce().values() if value.is_sparse else value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _floated(value):
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in LOW else value
    if isinstance(value, list | tuple):
        return type(value)(_floated(item) for item in value)
    return {key: _floated(item) for key, item in value.items()} if isinstance(value, dict) else value
