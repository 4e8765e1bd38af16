"""One step of a script recorded in full: with what FP32 would have there beside it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.execution import Execute, State
from ampcheck.observe.lineage import error_jumps
from ampcheck.observe.pair import SAMPLES, pair_errors
from ampcheck.observe.paired import PairedBook
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.script.clock import Clock
from ampcheck.observe.script.recording import (
    LOW_DTYPES,
    Beside,
    Named,
    Recorded,
    Recording,
    Used,
    precision_of,
    summed_up,
    unseen,
)
from ampcheck.observe.shadow import Shadow
from ampcheck.observe.unusual import plain
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Site

#: From a gradient in FP32 and in the script's precision, scaled, to what is to be known of their difference.
Compare = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


class Compared(Recording):
    """A step being recorded in full."""

    compares = True

    def __init__(
        self,
        step: int,
        execute: Execute,
        compare: Compare,
        used: Used = lambda *_: None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Prepare to record; `compare` says what is to be known of a gradient."""
        clock = clock or Clock()
        self._shadow = Shadow(clock.timed(execute))
        self.step_record = PairedBook(self._shadow, SAMPLES)
        self._compare = compare
        self._rows: dict[str, torch.Tensor] = {}
        self._both: set[int] = set()  #: parameters whose gradient FP32 has as well
        self._measured: dict[int, torch.Tensor] = {}  #: by parameter, where its gradient is no longer its own
        super().__init__(step, execute, used, clock=clock)
        self._shadow.gave_way = self.gave_way

    def _recorder(self) -> Recorder:
        return Recorder((), samples=SAMPLES, execute=self._run, step_record=self.step_record)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._before(func, args)
        return self._shadow.run(func, args, kwargs)

    def scales(self, scale: torch.Tensor) -> None:
        """Take note of a loss that is about to be scaled: FP32's is compared with it at the same scale."""
        self._shadow.forget(scale)

    def scaled_by(self, scale: torch.Tensor) -> None:
        """Take note of the loss scale: in FP32 there is none."""
        first = self.scale == 1.0
        super().scaled_by(scale)
        with unseen():
            if first:
                self._added_to()
            self._shadow.scale = self.scale
            self._shadow.set(scale, 1.0)

    def _added_to(self) -> None:
        """Unscale the gradients that there were when the recording began: this step's are added to them."""
        for _, _, parameter in self.recorder.tracker.parameters():
            grad = plain(parameter.grad)
            if grad is not None and self._shadow.of(grad) is None:
                self._shadow.keep(grad, grad.float() / self.scale)

    def measured(self, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Keep a low-precision gradient, and return what FP32 has beside it."""
        before = self._measured.get(id(leaf))
        reference = self._shadow.of(grad)
        wide = grad / self.scale if reference is None else reference.clone()
        together = grad if before is None else self._shadow.run(torch.ops.aten.add.Tensor, (before, grad), {})
        self._measured[id(leaf)] = together
        return wide.to(leaf.dtype)

    def overflowed(self) -> bool:
        """Tell whether a gradient was not finite that is finite in FP32."""
        return any(bool(row[2]) for row in self._rows.values())

    def restore_buffers(self) -> None:
        """Give the modules the running averages that FP32 has."""
        for buffer in self.recorder.tracker.buffers():
            reference = self._shadow.of(buffer)
            if reference is not None:
                buffer.copy_(reference)

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return self._measured.get(id(parameter), parameter.grad)

    def _states(self, parameters: Iterable[Named]) -> Iterator[State]:
        """Yield gradients and parameters; compare the gradients with FP32's."""
        given = list(parameters)
        known = {(module, name): id(parameter) for module, name, parameter in given}
        for module, name, parameter, grad in self._fresh(given):
            yield module, f"param_grad[{name}]", grad
            yield module, f"param[{name}]", parameter
            if grad.layout is torch.strided and not grad.is_complex():
                reference = self._shadow.of(grad)
                wide = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
                before = wide / self.scale if reference is None else reference
                if reference is not None:
                    self._both.add(known[module, name])
                row = self._compare(before, wide * self._correction(), self.log2_scale)
                self._rows[f"{module}.{name}".lstrip(".")] = row

    def _correction(self) -> float:
        """Return what a scale that is no power of two is off by."""
        return 2.0**self.log2_scale / self.scale if self.scale else 1.0

    @modes.unseen
    def finish(self) -> Recorded:
        """Bring everything to the host."""
        fetched = self.recorder.fetch()
        reference = self.step_record.fetch_reference()
        trace = self.recorder.trace(fetched)
        log2_scale = self.log2_scale
        rows = torch.stack(list(self._rows.values())).cpu().tolist() if self._rows else []
        failed = {f"results of {name} that FP32 takes over": n for name, n in self._shadow.failed.items()}
        trace = replace(trace, not_audited={**trace.not_audited, **failed})
        precision = precision_of(trace, self.autocast)
        by = self.scaling.scale or 1.0
        losses = (math.fsum(fetched.losses) / by, math.fsum(reference.losses) / by)
        # A scale that is applied by hand multiplies FP32's loss too, so both are compared as they are.
        errors = pair_errors(reference, fetched, 0 if by > 1.0 else log2_scale) if precision != "fp32" else {}
        low_dtype = LOW_DTYPES.get(precision, "float32")
        self._shadow.clear()
        sites = _without(reference.sites, log2_scale) if by > 1.0 else reference.sites
        wide = replace(trace, sites=sites, casts={}, not_audited={}, constants=())
        wide = replace(wide, steps=(summed_up(wide, losses[1], 0, "float32"),))
        beside = Beside(
            wide,
            errors,
            error_jumps(self.recorder.sources(), errors, low_dtype) if errors else (),
            dict(zip(self._rows, rows, strict=True)),
            frozenset(self._both),
        )
        trace = replace(trace, steps=(summed_up(trace, losses[0], log2_scale, low_dtype),))
        return Recorded(self.step, trace, precision, log2_scale, losses, beside, self.scaling, self.last)


def _without(sites: Mapping[Site, TensorStats], log2_scale: int) -> dict[Site, TensorStats]:
    """Return FP32's statistics as they would be without a scale."""
    return {site: stats.scaled(-log2_scale) if site.scaled else stats for site, stats in sites.items()}
