"""Re-running a step from the identical state: what every claim of ampcheck is tried by."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from ampcheck.errors import StepError
from ampcheck.observe.cuda_on_cpu.wide import WideCompute, execute
from ampcheck.observe.model.held import Held, copied, spoilt, versions, written
from ampcheck.observe.model.held import held as held_by
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_parameters
from ampcheck.observe.native import NATIVE
from ampcheck.observe.promote import Line, in_fp32
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import Step, Widened, casting_rules, clear_gradients, run
from ampcheck.values.outcome import HARM_UNDERFLOW, Outcome
from ampcheck.values.parts import but_for_noise, faint_parts, harmed_parts, off_by_itself, outcome_of
from ampcheck.values.trace import Trace, summed_up

#: Gradient elements below this share of their tensor's RMS carry no weight in an update; losing them is no loss.
MATTERS = 0.01
#: How far a second draw of the weights lies beside the first, relative to each: about one step of bf16.
BESIDE = 2.0**-8


def run_unseen(
    step: Step,
    dtype: torch.dtype | None,
    log2_scale: int = 0,
    around: AbstractContextManager[Any] = nullcontext(),  # noqa: B008  # it holds nothing
) -> torch.Tensor:
    """Run a step without recording it, and return the loss; the gradients stay in the parameters, scaled."""
    clear_gradients(step.model)
    device = step.device
    with ExitStack() as stack:
        stack.enter_context(casting_rules(device, dtype))
        if dtype is not None and device.type == "cpu":
            stack.enter_context(WideCompute())
        stack.enter_context(around)
        stack.enter_context(torch.enable_grad())
        with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss: torch.Tensor = step.loss(step.model, step.batch)
        (loss * torch.tensor(2.0**log2_scale, device=loss.device) if log2_scale else loss).backward()
    return loss.detach().double()


class Lab:
    """Runs one step again and again from the same state and compares it with its FP32 run."""

    def __init__(self, step: Step) -> None:
        """Run the step in FP32; everything a run changes is put back."""
        self.step = step
        self._before = Snapshot(step.model, step.batch, step.loss)
        self.trials = 0
        self.seconds = 0.0  #: that the last trial took, the comparison left out
        self._rounded: dict[torch.dtype, tuple[Outcome, dict[str, list[float]]]] = {}
        self._next: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None
        with self._restored():
            before = versions(self._held())
            self._loss = self._reference()
            self._grads = dict(self._gradients())
            self._written = copied(written(self._held(), before))

    def _reference(self) -> torch.Tensor:
        widened = Widened(self.step.model, self.step.batch)
        try:
            return self._run(None, 0)
        except Exception:
            if not widened:
                raise
            self._before.restore()  # the model insists on its half-precision parameters
            return self._run(None, 0)

    def trial(
        self,
        dtype: torch.dtype,
        log2_scale: int,
        modules: Iterable[str] = (),
        lines: Iterable[Line] = (),
        change: Callable[[Any], object] = lambda _: None,
    ) -> Outcome:
        """Run in low precision with these modules and lines in FP32, after a change of the model."""
        self.trials += 1
        begun = time.perf_counter()
        with self._restored(), in_fp32(self.step.model, modules, lines):
            try:
                change(self.step.model)
                loss = self._run(dtype, log2_scale)
            except Exception as error:  # noqa: BLE001  # the user's code may raise anything
                return Outcome(log2_scale, raised=f"{type(error).__name__}: {error}")
            self.seconds = time.perf_counter() - begun
            found, parts = self._compare(loss, log2_scale)
            found = self._with_state(found)
        return self._with_parts(found, parts, dtype)

    def recorded(
        self, dtype: torch.dtype, log2_scale: int, modules: Iterable[str] = (), lines: Iterable[Line] = ()
    ) -> Trace | None:
        """Return what a step with these modules and lines in FP32 holds; None where the user's code raises."""
        recorder = Recorder(self.step.model, execute=execute)
        with self._restored(), in_fp32(self.step.model, modules, lines):
            try:
                run(self.step, recorder, dtype, log2_scale)
            except StepError:
                return None
            trace = recorder.trace(recorder.fetch())
        summary = summed_up(trace, 0.0, log2_scale, str(dtype).removeprefix("torch."))
        return replace(trace, steps=(summary,))

    def rounded(self, dtype: torch.dtype) -> Outcome:
        """Run in FP32 with the parameters rounded to a format: what any rounding does to this step.

        It is the rounding_baseline for an error: a model that turns this one rounding into a large error would turn
        every other into one, wherever it happens.
        """
        return self._rounding_baseline(dtype)[0]

    def _rounding_baseline(self, dtype: torch.dtype) -> tuple[Outcome, dict[str, list[float]]]:
        if dtype not in self._rounded:
            with self._restored():
                with torch.no_grad():
                    for _, _, parameter in named_parameters(self.step.model):
                        if parameter.is_floating_point():
                            parameter.copy_(parameter.to(dtype))
                self._rounded[dtype] = self._compare(self._reference(), 0)
        return self._rounded[dtype]

    def _with_parts(self, found: Outcome, rows: Mapping[str, list[float]], dtype: torch.dtype) -> Outcome:
        """Return an outcome with the parts that are off by more than rounding the weights explains."""
        if not found.finite or not (off_by_itself(rows) or found.underflow > HARM_UNDERFLOW):
            return found
        known = self._rounding_baseline(dtype)[1]
        lost = outcome_of(but_for_noise(rows, known), 0.0, 0.0, 0).underflow
        return replace(found, underflow=lost, parts=harmed_parts(rows, known), faint=faint_parts(rows, known))

    def _held(self) -> dict[str, Held]:
        return held_by(self.step.model, self.step.loss)

    def _with_state(self, found: Outcome) -> Outcome:
        """Return an outcome with what the step left behind, and what FP32's next step makes of that."""
        if not found.finite or not self._written:
            return found
        off = spoilt(self._written, self._held())
        if not off:
            return found
        lost = any(error == float("inf") and self._written[name][1] for name, error in off.items())
        return replace(found, state=off, next_error=float("inf") if lost else self._next_error())

    def _next_error(self) -> float:
        """Return how far off FP32's step after this one is, from what this one has left behind."""
        left = self._then()
        if self._next is None:
            with self._restored():
                self._before.restore()
                self._reference()
                self._next = self._then()
        if left is None or self._next is None:
            return 0.0
        rows = compared(self._next[1], left[1].items(), 0)
        after = outcome_of(rows, float(left[0]), float(self._next[0]), 0)
        return after.error if after.finite else float("inf")

    def _then(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]] | None:
        """Run one more step in FP32; return None where it raises."""
        try:
            self._before.draw_again()
            return self._reference(), dict(self._gradients())
        except Exception:  # noqa: BLE001  # the user's code may raise anything
            return None

    @contextmanager
    def redrawn(self, batch: Any = None) -> "Iterator[Lab]":
        """Return a lab for the step at weights a little beside its own, where rounding falls otherwise.

        It runs on another batch where one is given.
        """
        generator = torch.Generator().manual_seed(0)
        with self._restored():
            with torch.no_grad():
                for _, _, parameter in named_parameters(self.step.model):
                    if parameter.is_floating_point() and parameter.dtype is not torch.bfloat16:
                        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                        parameter.mul_(1 + BESIDE * noise)
            yield Lab(self.step if batch is None else replace(self.step, batch=batch))

    @contextmanager
    def _restored(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._before.restore()

    def _run(self, dtype: torch.dtype | None, log2_scale: int) -> torch.Tensor:
        return run_unseen(self.step, dtype, log2_scale)

    def _gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        of_model = named_parameters(self.step.model)
        return comparable((module, name, parameter.grad) for module, name, parameter in of_model)

    def _compare(self, loss: torch.Tensor, log2_scale: int) -> tuple[Outcome, dict[str, list[float]]]:
        rows = compared(self._grads, self._gradients(), log2_scale)
        return outcome_of(rows, float(loss), float(self._loss), log2_scale), rows


def comparable(named: Iterable[tuple[str, str, torch.Tensor | None]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield gradients by the full name of their parameter: dense, real, and in FP32 at least."""
    for module, name, held in named:
        if held is not None:
            grad = held.to_dense() if held.is_sparse else held
            grad = torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad
            wide = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
            yield f"{module}.{name}".lstrip("."), wide


def compared(
    before: Mapping[str, torch.Tensor], after: Iterable[tuple[str, torch.Tensor]], log2_scale: int
) -> dict[str, list[float]]:
    """Return what `comparison` says of each gradient that both runs have."""
    rows, names = [], []
    for name, grad in after:
        reference = before.get(name)
        if reference is not None and reference.shape == grad.shape:
            names.append(name)
            rows.append(comparison(reference, grad, log2_scale))
    table = torch.stack(rows).cpu().tolist() if rows else []
    return dict(zip(names, table, strict=True))


def comparison(before: torch.Tensor, scaled: torch.Tensor, log2_scale: int) -> torch.Tensor:
    """Return error energy, reference energy, new non-finites, elements that underflow and elements that matter."""
    if NATIVE is not None and before.shape == scaled.shape and _plain(before) and _plain(scaled):
        where = (before.data_ptr(), scaled.data_ptr(), before.numel())
        found = NATIVE.compare(*where, 2.0**-log2_scale, MATTERS)
        return torch.tensor(found, dtype=torch.float64, device="cpu")
    zero = scaled == 0
    error = _energy(torch.sub(scaled * 2.0**-log2_scale, before))
    norm = _energy(before)
    bad = torch.zeros((), dtype=torch.float64, device=before.device)
    if not bool((error + norm).isfinite()):
        healthy = before.isfinite()
        bad = (healthy & ~scaled.isfinite()).sum().double()
        before = before.where(healthy, 0.0)
        after = scaled.where(healthy & scaled.isfinite(), 0.0) * 2.0**-log2_scale
        error, norm = _energy(after - before), _energy(before)
    size = before.abs()
    matters = (size >= MATTERS * (norm / max(before.numel(), 1)).sqrt()) & (size > 0)
    return torch.stack([error, norm, bad, (matters & zero).sum().double(), matters.sum().double()])


def _plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's elements lie in memory one after the other, in FP32."""
    strided = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_neg()
    return strided and tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()


def _energy(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, in double precision without a copy in it."""
    norm: torch.Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square()
