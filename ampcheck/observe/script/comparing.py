"""One step of a script recorded in full: with what FP32 would have there beside it."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ampcheck.observe.lineage import leaps
from ampcheck.observe.pair import SAMPLES, pair_errors
from ampcheck.observe.paired import PairedBook
from ampcheck.observe.recorder import Execute, Recorder, State
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

#: From a gradient in FP32 and in the script's precision, scaled, to what is to be known of their difference.
Compare = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


class Compared(Recording):
    """A step being recorded in full."""

    compares = True

    def __init__(self, step: int, execute: Execute, compare: Compare, used: Used = lambda *_: None) -> None:
        """Prepare to record; `compare` says what is to be known of a gradient."""
        self._shadow = Shadow(execute)
        self.book = PairedBook(self._shadow, SAMPLES)
        self._compare = compare
        self._rows: dict[str, torch.Tensor] = {}
        self._measured: dict[int, torch.Tensor] = {}  #: by parameter, where its gradient is no longer its own
        super().__init__(step, execute, used)

    def _recorder(self) -> Recorder:
        return Recorder((), samples=SAMPLES, execute=self._run, book=self.book)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.backwards:
            self._used_by(func, args)
        return self._shadow.run(func, args, kwargs)

    def scaled_by(self, scale: torch.Tensor) -> None:
        """Take note of the loss scale: in FP32 there is none."""
        super().scaled_by(scale)
        with unseen():
            self._shadow.scale = self.scale
            self._shadow.set(scale, 1.0)

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
        return any(bool(row[2]) for row in self._rows.values())

    def restore_buffers(self) -> None:
        """Give the modules the running averages that FP32 has."""
        for buffer in self.recorder.tracker.buffers():
            twin = self._shadow.of(buffer)
            if twin is not None:
                buffer.copy_(twin)

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return self._measured.get(id(parameter), parameter.grad)

    def _states(self, parameters: Iterable[Named]) -> Iterator[State]:
        """Yield gradients and parameters; compare the gradients with FP32's."""
        for module, name, parameter, grad in self._fresh(parameters):
            yield module, f"param_grad[{name}]", grad
            yield module, f"param[{name}]", parameter
            if grad.layout is torch.strided and not grad.is_complex():
                twin = self._shadow.of(grad)
                wide = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
                before = wide / self.scale if twin is None else twin
                row = self._compare(before, wide * self._correction(), self.log2_scale)
                self._rows[f"{module}.{name}".lstrip(".")] = row

    def _correction(self) -> float:
        """Return what a scale that is no power of two is off by."""
        return 2.0**self.log2_scale / self.scale if self.scale else 1.0

    def finish(self) -> Recorded:
        """Bring everything to the host."""
        fetched = self.recorder.fetch()
        reference = self.book.fetch_reference()
        trace = self.recorder.trace(fetched)
        log2_scale = self.log2_scale
        rows = torch.stack(list(self._rows.values())).cpu().tolist() if self._rows else []
        failed = {f"results of {name} that FP32 takes over": n for name, n in self._shadow.failed.items()}
        trace = replace(trace, not_audited={**trace.not_audited, **failed})
        precision = precision_of(trace, self.autocast)
        losses = (math.fsum(fetched.losses), math.fsum(reference.losses))
        errors = pair_errors(reference, fetched, log2_scale) if precision != "fp32" else {}
        low_dtype = LOW_DTYPES.get(precision, "float32")
        self._shadow.clear()
        wide = replace(trace, sites=reference.sites, casts={}, not_audited={}, constants=())
        wide = replace(wide, steps=(summed_up(wide, losses[1], 0, "float32"),))
        beside = Beside(
            wide,
            errors,
            leaps(self.recorder.sources(), errors, low_dtype) if errors else (),
            dict(zip(self._rows, rows, strict=True)),
        )
        trace = replace(trace, steps=(summed_up(trace, losses[0], log2_scale, low_dtype),))
        return Recorded(self.step, trace, precision, log2_scale, losses, beside)
