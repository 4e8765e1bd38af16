"""One step of a script, recorded in full: what it computed, and what FP32 would have there."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from ampcheck.loop import Kind
from ampcheck.observe.failure import locate
from ampcheck.observe.lineage import leaps
from ampcheck.observe.pair import SAMPLES, pair_errors
from ampcheck.observe.paired import PairedBook
from ampcheck.observe.recorder import Execute, Recorder
from ampcheck.observe.script.reading import owners, use_of
from ampcheck.observe.shadow import Shadow
from ampcheck.observe.sharing import local
from ampcheck.trace import Failure, Leap, PairError, Phase, Site, StepSummary, Trace

#: Operations after which a step is given up: it is no step, but a script that never updates its weights.
MOST_OPERATIONS = 100_000

#: Told of the use of gradients: what kind, by which operation, whose.
Used = Callable[[Kind, str, list[torch.Tensor]], None]
#: From a gradient in FP32 and in the script's precision, scaled, to what is to be known of their difference.
Compare = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one recorded step came to."""

    step: int
    low: Trace
    reference: Trace
    errors: Mapping[Site, PairError]
    leaps: tuple[Leap, ...]
    precision: str  #: fp16, bf16 or fp32: what its operations ran in
    log2_scale: int
    losses: tuple[float, float]  #: the script's, and FP32's
    rows: Mapping[str, Sequence[float]]  #: by parameter, what `Compare` said


class Recording:
    """A step being recorded."""

    def __init__(self, step: int, execute: Execute, used: Used = lambda *_: None) -> None:
        """Prepare to record; `execute` runs an operation as the script wants it.

        `used` hears of operations that measure or limit gradients.
        """
        self.step = step
        self._shadow = Shadow(execute)
        self.book = PairedBook(self._shadow, SAMPLES)
        self.recorder = Recorder((), samples=SAMPLES, execute=self._run, book=self.book)
        self.scale = 1.0
        self._compared: dict[str, torch.Tensor] = {}
        self._measured: dict[int, torch.Tensor] = {}  #: by parameter, where its gradient is no longer its own
        self.backwards = 0
        self._used = used
        self._looked = False  #: the script has measured gradients
        self.autocast = ""  #: the dtype of the regions that its modules are called in

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        use = use_of(func, args, measured=self._looked) if self.backwards else None
        if use is not None:
            kind, name, values = use
            with unseen():
                found = list(owners(values, (item[2] for item in self.recorder.tracker.parameters())))
            if found:
                self._looked = self._looked or kind is Kind.READ_GRAD
                self._used(kind, name, found)
        return self._shadow.run(func, args, kwargs)

    def open(self) -> None:
        """Begin to record."""
        self.recorder.__enter__()

    def close(self) -> None:
        """Stop recording; what was recorded stays."""
        stack = _get_current_dispatch_mode_stack()
        above = stack[stack.index(self.recorder) + 1 :] if self.recorder in stack else []
        # The script may have entered modes of its own meanwhile, and not left them yet.
        for _ in above:
            _pop_mode()
        self.recorder.__exit__(None, None, None)
        for mode in above:
            _push_mode(mode)

    def too_long(self) -> bool:
        """Tell whether this is no step any more."""
        return self.recorder.operations > MOST_OPERATIONS

    def failed(self, error: Exception) -> Failure:
        """Return what a step raised, and where."""
        return locate(error, self.recorder.tracker, self.recorder.failed)

    def scaled_by(self, scale: torch.Tensor) -> None:
        """Take note of the loss scale: in FP32 there is none."""
        with unseen():
            self.scale = float(scale)
            self._shadow.scale = self.scale
            self._shadow.set(scale, 1.0)

    def keep_loss(self, loss: torch.Tensor) -> None:
        """Keep a loss, as it is before it is scaled."""
        with unseen():
            if loss.numel() == 1 and loss.is_floating_point():
                self.book.keep_loss(loss.detach())

    def measured(self, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Keep a low-precision gradient, and return what FP32 has beside it."""
        before = self._measured.get(id(leaf))
        twin = self._shadow.of(grad)
        wide = grad / self.scale if twin is None else twin.clone()
        together = grad if before is None else self._shadow.run(torch.ops.aten.add.Tensor, (before, grad), {})
        self._measured[id(leaf)] = together
        return wide.to(leaf.dtype)

    def overflowed(self) -> bool:
        """Tell whether a gradient was not finite that is finite in FP32."""
        return any(bool(row[2]) for row in self._compared.values())

    def restore_buffers(self) -> None:
        """Give the modules the running averages that FP32 has."""
        for buffer in self.recorder.tracker.buffers():
            twin = self._shadow.of(buffer)
            if twin is not None:
                buffer.copy_(twin)

    def gradients(self, parameters: Iterable[tuple[str, str, torch.Tensor]], compare: Compare) -> None:
        """Measure gradients as they are after the backward: scaled, and not clipped."""
        with unseen():
            for module, name, parameter in parameters:
                full = f"{module}.{name}".lstrip(".")
                held = self._measured.get(id(parameter), parameter.grad)
                grad = None if held is None else local(held)
                if grad is None or full in self._compared:
                    continue
                self.recorder.state(module, f"param_grad[{name}]", grad)
                self.recorder.state(module, f"param[{name}]", local(parameter).detach())
                if grad.layout is torch.strided and not grad.is_complex():
                    twin = self._shadow.of(grad)
                    wide = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
                    before = wide / self.scale if twin is None else twin
                    self._compared[full] = compare(before, wide * self._correction(), self._log2_scale())

    def _log2_scale(self) -> int:
        return round(math.log2(self.scale)) if 0 < self.scale < math.inf else 0

    def _correction(self) -> float:
        """Return what a scale that is no power of two is off by."""
        return 2.0 ** self._log2_scale() / self.scale if self.scale else 1.0

    def finish(self) -> Recorded:
        """Bring everything to the host."""
        fetched = self.recorder.fetch()
        reference = self.book.fetch_reference()
        trace = self.recorder.trace(fetched)
        log2_scale = self._log2_scale()
        rows = torch.stack(list(self._compared.values())).cpu().tolist() if self._compared else []
        failed = {f"results of {name} that FP32 takes over": n for name, n in self._shadow.failed.items()}
        trace = replace(trace, not_audited={**trace.not_audited, **failed})
        precision = _precision(trace, self.autocast)
        losses = (math.fsum(fetched.losses), math.fsum(reference.losses))
        errors = pair_errors(reference, fetched, log2_scale) if precision != "fp32" else {}
        low_dtype = {"fp16": "float16", "bf16": "bfloat16"}.get(precision, "float32")
        self._shadow.clear()
        wide = replace(trace, sites=reference.sites, casts={}, not_audited={}, constants=())
        return Recorded(
            self.step,
            replace(trace, steps=(_summary(trace, losses[0], log2_scale, low_dtype),)),
            replace(wide, steps=(_summary(wide, losses[1], 0, "float32"),)),
            errors,
            leaps(self.recorder.sources(), errors, low_dtype) if errors else (),
            precision,
            log2_scale,
            losses,
            dict(zip(self._compared, rows, strict=True)),
        )


def unseen() -> ExitStack:
    """Return a context in which nothing that runs is seen by the script or a recorder."""
    stack = ExitStack()
    stack.enter_context(torch._C._DisableTorchDispatch())
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(torch.no_grad())
    for key in (torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA):
        stack.enter_context(torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)))
    return stack


def _precision(trace: Trace, autocast: str) -> str:
    """Return what a step ran in: what it asked for, even if some of it is in another: RNNs under cuDNN are fp16."""
    dtypes = {site.dtype for site in trace.sites if site.op and site.phase is not Phase.STATE}
    if autocast in dtypes:
        dtypes = {autocast}
    return "fp16" if "float16" in dtypes else "bf16" if "bfloat16" in dtypes else "fp32"


def _summary(trace: Trace, loss: float, log2_scale: int, low: str) -> StepSummary:
    backward = [s.amax for k, s in trace.sites.items() if k.phase is Phase.BACKWARD and k.dtype == low]
    bad = any(s.nonfinite for k, s in trace.sites.items() if k.slot.startswith("param_grad"))
    return StepSummary(loss, log2_scale, max(backward, default=0.0), bad)
