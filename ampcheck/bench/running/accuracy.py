"""Accuracy of one step: loss, outputs and gradients against a golden run in FP64."""

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ampcheck.bench.result import Closeness, OneStep
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.precisions import Precision, as_cuda_casts
from ampcheck.observe.model.structure import named_parameters, roots
from ampcheck.observe.step import StepRaised, casting_rules
from ampcheck.targets.nested import mapped, tensors
from ampcheck.targets.spec import Target

#: The loss scale of one step is halved at most this often, as GradScaler would, until the gradients are finite.
_HALVINGS = 40


#: A gradient smaller than this many times its own FP32 rounding error is noise.
_ROUNDING = 100
#: Gradients are compared with at least this share of the RMS of all: FP32's own resolution.
_SMALLEST = 2.0**-24
#: FP32 is never that far from FP64 by rounding alone: a step that draws random numbers has drawn others.
OTHER_DRAWS = 0.01

Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class Seen:
    """What one step came to, in FP64."""

    loss: float
    outputs: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    scale: float = 1.0
    drew: bool = False  #: random numbers were drawn

    @property
    def finite(self) -> bool:
        """Tell whether every gradient is."""
        return all(bool(grad.isfinite().all()) for grad in self.gradients.values())


class Golden:
    """The step in FP64, or in FP32 where the model does not run in FP64, with which others are compared."""

    def __init__(self, make: Callable[[], Target], *, trains: bool = True) -> None:
        """Run it; where nothing is trained, its forward alone."""
        self._make, self._trains = make, trains
        plain = self._run(make(), Precision("fp32"))
        self.reference, self._seen = "fp32", plain
        self._plain = plain
        with contextlib.suppress(StepRaised):
            golden = self._run(_doubled(make()), Precision("fp32"), double=True)
            if not (plain.drew and closeness(_shared(plain, golden).values()).relative_rms > OTHER_DRAWS):
                self.reference, self._seen = "fp64", golden

    def _run(
        self, target: Target, chosen: Precision, *, double: bool = False, scale: float | None = None
    ) -> Seen:
        """Run a step, or without training a forward, of a target that is used up by it."""
        arm = Arm(
            target, chosen, (lambda device, *_: casting_rules(device, None)) if double else as_cuda_casts
        )
        used = scale or arm.scaler.get_scale()
        seen = Seen(0.0, scale=used)

        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            seen.outputs = [
                leaf.detach().double()
                for leaf in tensors(output)
                if leaf.is_floating_point() and not leaf.is_sparse
            ]

        handles = [module.register_forward_hook(keep) for module in roots(target.model).values()]
        try:
            with arm.running(), torch.random.fork_rng():
                torch.manual_seed(0)
                state = torch.get_rng_state()
                batch = arm.target.batch(0)
                loss = arm.forward(batch) if self._trains else arm.infer(batch)
                if self._trains:
                    (loss * used).backward()
                seen.drew = not torch.equal(state, torch.get_rng_state())
        finally:
            for handle in handles:
                handle.remove()
        seen.loss = float(loss.detach())
        for module, name, parameter in named_parameters(target.model):
            if parameter.grad is not None and not parameter.grad.is_complex():
                grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                seen.gradients[f"{module}.{name}".lstrip(".")] = grad.double() / used
        return seen

    def compare(self, chosen: Precision) -> OneStep:
        """Run the step in a precision, from the same state, and say how far off it is."""
        target = self._make()
        device = Arm(target, chosen).device
        seen = self._run(target, chosen)
        for _ in range(_HALVINGS):
            if seen.finite or seen.scale <= 1.0:
                break
            seen = self._run(self._make(), chosen, scale=seen.scale / 2)
        shared = _shared(seen, self._seen)
        errors = {name: self._error(name, found) for name, (found, _) in shared.items()}
        worst = max(
            errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name], default=""
        )
        return OneStep(
            self.reference,
            seen.loss,
            abs(seen.loss - self._seen.loss) / max(abs(self._seen.loss), 1e-300),
            closeness(zip(seen.outputs, self._seen.outputs, strict=True))
            if seen.outputs and self._seen.outputs
            else None,
            closeness(shared.values()) if self._trains else None,
            worst,
            errors.get(worst, 0.0),
            "CUDA's rules on CPU tensors" if device.type == "cpu" else f"autocast of {device.type}",
        )

    def _error(self, name: str, found: torch.Tensor) -> float:
        """Return the error of one gradient, relative to it, or to the mean of all where FP32 cannot tell it from zero.

        A bias before a batch norm has a gradient of zero but for rounding.
        """
        golden = self._seen.gradients[name]
        if found.shape != golden.shape:
            return math.nan
        rounding = float((self._plain.gradients.get(name, golden) - golden).norm())
        root = math.sqrt(golden.numel() or 1)
        norm, mean = float(golden.norm()), self._size * root
        size = mean if norm <= _ROUNDING * rounding else max(norm, _SMALLEST * mean)
        error = float((found - golden).norm())
        return error / size if size else (math.inf if error else 0.0)

    @property
    def _size(self) -> float:
        """Return the RMS of all golden gradients."""
        squares = sum(float(grad.square().sum()) for grad in self._seen.gradients.values())
        count = sum(grad.numel() for grad in self._seen.gradients.values())
        return math.sqrt(squares / count) if count else 0.0


def _shared(found: Seen, golden: Seen) -> dict[str, Pair]:
    """Return the gradients that two runs have, each beside its golden one."""
    names = (name for name in found.gradients if name in golden.gradients)
    return {name: (found.gradients[name], golden.gradients[name]) for name in names}


def closeness(pairs: Iterable[Pair]) -> Closeness:
    """Return how far tensors are from their golden ones, all elements together."""
    error = squares = cross = own = total = 0.0
    count = 0
    for a, b in pairs:
        if a.shape != b.shape:
            return Closeness(math.nan, math.nan, math.nan)
        difference = a - b
        error += float(difference.square().sum())
        total += float(difference.sum())
        squares += float(b.square().sum())
        own += float(a.square().sum())
        cross += float((a * b).sum())
        count += a.numel()
    if not squares or not count:
        return Closeness(0.0 if not error else math.inf, 1.0 if not error else 0.0, 0.0)
    size = math.sqrt(squares)
    cosine = cross / (size * math.sqrt(own)) if own else 0.0
    return Closeness(math.sqrt(error) / size, cosine, total / count / (size / math.sqrt(count)))


def _doubled(target: Target) -> Target:
    """Return the target with FP64 parameters, buffers and batches."""
    from dataclasses import replace

    from ampcheck.observe.model.structure import modules

    for module in modules(target.model):
        for table in (module.__dict__.get("_parameters") or {}, module.__dict__.get("_buffers") or {}):
            for tensor in table.values():
                if tensor is not None and tensor.is_floating_point():
                    tensor.data = tensor.data.double()

    def double(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return replace(target, batches=[mapped(double, batch) for batch in target.batches])
