"""A second opinion on what low precision does to a step: a plain training loop, without recorder, lab or rules.

Shared with ampcheck are only the casting kernels and the float32 accumulation, which have witnesses of their own.
Everything is built anew for each run, so that no run can leave anything to the next.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import WideCompute

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
#: GradScaler's first scale, as a power of two.
FIRST = 16
MATTERS = 0.01  #: of a tensor's RMS: smaller gradient elements are not missed

#: Makes a model, a batch and a loss of both; the same ones each time, and the same random state after it.
Build = Callable[[], tuple[Any, Any, Callable[[Any, Any], torch.Tensor]]]

#: Draws a batch like one.
Redraw = Callable[[Any], Any]


@dataclass(frozen=True)
class Run:
    """One step: its loss and its gradients without the scale, in float64."""

    loss: float
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    raised: str = ""


@dataclass(frozen=True)
class Opinion:
    """What a low-precision step came to, against FP32."""

    log2_scale: int
    error: float  #: of all gradients together, relative L2; infinite where one is not finite
    loss_error: float
    underflow: float  #: share of gradient elements that matter and are zero

    def harmed(self, limit: float) -> bool:
        """Tell whether any of the three is above the limit."""
        return max(self.error, self.loss_error, self.underflow) > limit


def step(build: Build, dtype: torch.dtype | None, log2_scale: int, fp32: Iterable[str] = ()) -> Run:
    """Run a step in a dtype, with the named modules out of autocast; None is FP32."""
    model, batch, loss_of = build()
    model.zero_grad(set_to_none=True)
    for name in fp32:
        _promote(model.get_submodule(name))
    try:
        with cuda_casting(), WideCompute():
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_of(model, batch)
            (loss.float() * 2.0**log2_scale).backward()
    except RuntimeError as error:
        return Run(math.nan, raised=str(error).split("\n")[0])
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Run(
        float(loss.detach()), {name: g.to_dense().double() * 2.0**-log2_scale for name, g in grads.items()}
    )


def opinion(build: Build, precision: str, log2_scale: int | None = None, fp32: Iterable[str] = ()) -> Opinion:
    """Return what a step comes to at a scale, or where a scaler that halves it after each overflow settles."""
    reference = step(build, None, 0)
    if log2_scale is not None or precision == "bf16":
        return against(reference, step(build, DTYPES[precision], log2_scale or 0, fp32), log2_scale or 0)
    for scale in range(FIRST, -1, -1):
        found = against(reference, step(build, DTYPES[precision], scale, fp32), scale)
        if math.isfinite(found.error) or not math.isfinite(found.loss_error):
            break
    return found


def rounded(build: Build, precision: str) -> float:
    """Return the gradient error of FP32 with nothing but the weights rounded: what any rounding costs here."""

    def with_rounded_weights() -> tuple[Any, Any, Callable[[Any, Any], torch.Tensor]]:
        model, batch, loss_of = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(DTYPES[precision]))
        return model, batch, loss_of

    return against(step(build, None, 0), step(with_rounded_weights, None, 0), 0).error


@dataclass(frozen=True)
class Training:
    """Mean losses of the last steps of a training that goes on: in FP32, in low precision and with a plan."""

    wide: float
    low: float
    healed: float


def training(
    build: Build, precision: str, fp32: Iterable[str], seed: int, again: Redraw, steps: int
) -> Training:
    """Train on from the same weights with the same batches, drawn anew in each step; in fp16 at torch's first scale."""
    found = [
        _losses(build, dtype, kept, seed, again, steps)
        for dtype, kept in ((None, ()), (DTYPES[precision], ()), (DTYPES[precision], fp32))
    ]
    return Training(*(sum(losses[-steps // 3 :]) / len(losses[-steps // 3 :]) for losses in found))


def _losses(
    build: Build, dtype: torch.dtype | None, fp32: Iterable[str], seed: int, again: Redraw, steps: int
) -> list[float]:
    model, batch, loss_of = build()
    for name in fp32:
        _promote(model.get_submodule(name))
    torch.manual_seed(seed)
    optimizer, losses = torch.optim.AdamW(model.parameters(), 3e-4), []
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    for _ in range(steps):
        with (
            cuda_casting(),
            WideCompute(),
            torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None),
        ):
            loss = loss_of(model, again(batch))
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def against(reference: Run, low: Run, log2_scale: int) -> Opinion:
    """Return how a run differs from FP32."""
    if low.raised:
        return Opinion(log2_scale, math.inf, math.inf, 0.0)
    both = [(exact, low.grads[name]) for name, exact in reference.grads.items() if name in low.grads]
    distance = sum(float((a - b).square().sum()) for a, b in both) ** 0.5
    norm = sum(float(a.square().sum()) for a, _ in both) ** 0.5
    matter = [(a.abs() >= MATTERS * a.square().mean().sqrt()) & (a != 0) for a, _ in both]
    lost = sum(int((m & (b == 0)).sum()) for m, (_, b) in zip(matter, both, strict=True))
    apart = abs(low.loss - reference.loss) / max(abs(reference.loss), 1e-12)
    return Opinion(
        log2_scale,
        distance / norm if math.isfinite(distance) and norm else math.inf,
        apart if math.isfinite(apart) else math.inf,
        lost / max(sum(int(m.sum()) for m in matter), 1),
    )


def _promote(module: Any) -> None:
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return inner(
                *(_floated(arg) for arg in args), **{key: _floated(arg) for key, arg in kwargs.items()}
            )

    module.forward = forward


def _floated(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in DTYPES.values() else value
    return type(value)(_floated(item) for item in value) if type(value) in (list, tuple) else value
