"""Re-running a step from the identical state: what every claim of ampcheck is tried by."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from ampcheck.observe.native import NATIVE
from ampcheck.observe.promote import Line, in_fp32
from ampcheck.observe.state import Snapshot
from ampcheck.observe.step import Step, Widened, casting_rules, clear_gradients
from ampcheck.observe.structure import named_parameters
from ampcheck.observe.wide import WideCompute
from ampcheck.outcome import HARM_ERROR, Outcome

#: Gradient elements below this share of their tensor's RMS carry no weight in an update; losing them is no loss.
MATTERS = 0.01


class Lab:
    """Runs one step again and again from the same state and compares it with its FP32 run."""

    def __init__(self, step: Step) -> None:
        """Run the step in FP32; everything a run changes is put back."""
        self.step = step
        self._before = Snapshot(step.model, step.batch, step.loss)
        self.trials = 0
        self.seconds = 0.0  #: that the last trial took, the comparison left out
        with self._restored():
            self._loss = self._reference()
            self._grads = dict(self._gradients())

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
        self, dtype: torch.dtype, log2_scale: int, modules: Iterable[str] = (), lines: Iterable[Line] = ()
    ) -> Outcome:
        """Run in low precision with these modules and lines in FP32."""
        self.trials += 1
        begun = time.perf_counter()
        with self._restored(), in_fp32(self.step.model, modules, lines):
            try:
                loss = self._run(dtype, log2_scale)
            except Exception as error:  # noqa: BLE001  # the user's code may raise anything
                return Outcome(log2_scale, raised=f"{type(error).__name__}: {error}")
            self.seconds = time.perf_counter() - begun
            return self._compare(loss, log2_scale)

    def rounded(self, dtype: torch.dtype) -> Outcome:
        """Run in FP32 with the parameters rounded to a format: what any rounding does to this step.

        It is the yardstick for an error: a model that turns this one rounding into a large error would turn
        every other into one, wherever it happens.
        """
        with self._restored():
            with torch.no_grad():
                for _, _, parameter in named_parameters(self.step.model):
                    if parameter.is_floating_point():
                        parameter.copy_(parameter.to(dtype))
            return self._compare(self._reference(), 0)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._before.restore()

    def _run(self, dtype: torch.dtype | None, log2_scale: int) -> torch.Tensor:
        clear_gradients(self.step.model)
        device = self.step.device
        with ExitStack() as stack:
            stack.enter_context(casting_rules(device, dtype))
            if dtype is not None and device.type == "cpu":
                stack.enter_context(WideCompute())
            stack.enter_context(torch.enable_grad())
            with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss: torch.Tensor = self.step.loss(self.step.model, self.step.batch)
            (loss * torch.tensor(2.0**log2_scale, device=loss.device) if log2_scale else loss).backward()
        return loss.detach().double()

    def _gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for module, name, parameter in named_parameters(self.step.model):
            if parameter.grad is not None:
                grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                grad = torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad
                yield (
                    f"{module}.{name}".lstrip("."),
                    grad.detach().to(torch.promote_types(grad.dtype, torch.float32)),
                )

    def _compare(self, loss: torch.Tensor, log2_scale: int) -> Outcome:
        rows, names = [], []
        for name, grad in self._gradients():
            before = self._grads.get(name)
            if before is not None and before.shape == grad.shape:
                names.append(name)
                rows.append(comparison(before, grad, log2_scale))
        table = torch.stack(rows).cpu().tolist() if rows else []
        return outcome_of(dict(zip(names, table, strict=True)), float(loss), float(self._loss), log2_scale)


def outcome_of(
    rows: Mapping[str, Sequence[float]], value: float, reference: float, log2_scale: int
) -> Outcome:
    """Return what a run came to: its gradients' comparisons by parameter, its loss and the FP32 loss."""
    names = list(rows)
    error, norm, bad, lost, live = zip(*rows.values(), strict=True) if rows else ((), (), (), (), ())
    finite, known = value - value == 0.0, reference - reference == 0.0
    off = abs(value - reference) / max(abs(reference), 1e-12) if finite else float("inf")
    return Outcome(
        log2_scale,
        loss=value,
        loss_error=off if known else 0.0,
        loss_nonfinite=not finite and known,
        grads_nonfinite=tuple(name for name, count in zip(names, bad, strict=True) if count),
        grad_error=_ratio(sum(error), sum(norm)) ** 0.5,
        vanished=_ratio(sum(lost), sum(live)),
        vanished_by={name: a / b for name, a, b in zip(names, lost, live, strict=True) if a},
        off=tuple(
            name
            for name, a, b in zip(names, error, norm, strict=True)
            if not a <= HARM_ERROR**2 * b  # NaN is off too
        ),
    )


def comparison(before: torch.Tensor, scaled: torch.Tensor, log2_scale: int) -> torch.Tensor:
    """Return error energy, reference energy, new non-finites, elements lost and elements that matter."""
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


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
