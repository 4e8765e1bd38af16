"""One training step, recorded: forward and loss in a precision, backward at a loss scale.

What it held can be compared with another run of it.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from ampcheck.errors import StepError
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import State
from ampcheck.observe.failure import is_out_of_memory, locate
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.model.structure import in_table, modules, named_parameters, own_tensors
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.lineage import error_jumps, overflown_casts
from ampcheck.observe.same_draws import same_draws
from ampcheck.observe.statistics.step_record import Fetched
from ampcheck.values.trace import ErrorJump, Failure, PairError, Site, Trace, summed_up


class StepRaised(StepError):  # noqa: N818  # says what happened, as StopIteration does
    """The user's model or loss raised; `failure` says where."""

    def __init__(self, failure: Failure, *, out_of_memory: bool = False) -> None:
        module = f" in module {failure.module!r}" if failure.module else ""
        hint = "use a smaller --batch-size" if out_of_memory else ""
        super().__init__(f"{failure.kind}: {failure.message}{module}", where=failure.location, hint=hint)
        self.failure = failure
        self.out_of_memory = out_of_memory


@contextmanager
def users_code(recorder: Recorder | None = None) -> Iterator[None]:
    """Raise what the user's code raises as StepRaised, with the place in it."""
    try:
        yield
    except StepError:
        raise
    except Exception as error:
        place = (None, None) if recorder is None else (recorder.tracker, recorder.failed)
        raise StepRaised(locate(error, *place), out_of_memory=is_out_of_memory(error)) from error


@dataclass(frozen=True, slots=True)
class Step:
    """What is run: a model on a batch, up to a scalar loss."""

    model: Any
    batch: Any
    loss: Callable[[Any, Any], Any]

    @property
    def device(self) -> torch.device:
        """Return where the model's first parameter or buffer is, or the CPU."""
        inside = modules(self.model)
        tables = ("_parameters", "_buffers")
        held = (one for table in tables for part in inside for _, one in in_table(part, table))
        first = next(held, None)
        return torch.device("cpu") if first is None else first.device


@contextmanager
def casting_rules(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Let autocast mean CUDA's autocast, also on a CPU; with None every autocast is off, and TF32 too.

    Compiled modules run eagerly inside, so that their operations can be seen. On CUDA dropout drops the same numbers
    with every dtype.
    """
    with ExitStack() as stack:
        stack.enter_context(_eagerly())
        # TorchScript would rewrite its graph after the first runs, once for all dtypes: no two runs would compare.
        stack.enter_context(torch.jit.optimized_execution(should_optimize=False))  # type: ignore[attr-defined]
        stack.enter_context(autocast_stands_in(device.type, enabled=dtype is not None))
        if dtype is None:
            stack.enter_context(_without_tf32())
        if device.type == "cpu":
            # For the FP32 run too: CUDA's dropout is another operation, and both runs must name the same.
            stack.enter_context(cuda_casting())
        elif device.type == "cuda":
            stack.enter_context(same_draws())
        yield


@contextmanager
def _eagerly() -> Iterator[None]:
    # Nothing can have been compiled where the compiler was never loaded, and loading it takes a second.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        # A compiled module warns of global hooks; that ours see its wrapper too does no harm.
        warnings.filterwarnings(
            "ignore", message="Using `torch.compile\\(module\\)` when there are global hooks"
        )
        yield


@contextmanager
def _without_tf32() -> Iterator[None]:
    if not torch.cuda.is_available():
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


class Widened:
    """Half-precision parameters, buffers and inputs held in FP32 for a while."""

    def __init__(self, model: Any, batch: Any = None) -> None:
        held = [tensor for module in modules(model) for _, tensor in own_tensors(module)]
        held += [tensor for _, tensor in tensors_in(batch, "")]
        low = {id(tensor): tensor for tensor in held if tensor.dtype in HALVES and tensor.is_leaf}
        self._tensors = [(tensor, tensor.data) for tensor in low.values()]
        for tensor, data in self._tensors:
            tensor.grad = None
            tensor.data = data.float()

    def __bool__(self) -> bool:
        """Tell whether there was anything to widen."""
        return bool(self._tensors)

    def narrow(self) -> None:
        """Go back to half precision, with the numbers of now."""
        for tensor, data in self._tensors:
            data.copy_(tensor.data)
            tensor.grad = None
            tensor.data = data
        self._tensors = []


def run(step: Step, recorder: Recorder, dtype: torch.dtype | None, log2_scale: int = 0) -> None:
    """Run and record a step; what the user's code raises is raised as StepRaised.

    The gradients of the step are left in the parameters, scaled. As in a training loop the backward runs
    outside of autocast.
    """
    clear_gradients(step.model)
    device = step.device
    autocast = nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
    with users_code(recorder), casting_rules(device, dtype), recorder, torch.enable_grad():
        with autocast:
            loss = step.loss(step.model, step.batch)
        _check(loss, step.model)
        recorder.step_record.keep_loss(loss)
        # As GradScaler does it: a loss in half precision becomes FP32 by the product.
        (loss * torch.tensor(2.0**log2_scale, device=loss.device) if log2_scale else loss).backward()
    recorder.states(_state(step.model))


def _state(model: Any) -> Iterator[State]:
    """Yield the parameters of a model, each after its gradient."""
    for module, name, parameter in named_parameters(model):
        if (grad := gradient_of(parameter)) is not None:
            yield module, f"param_grad[{name}]", grad
        yield module, f"param[{name}]", parameter


def _check(loss: Any, model: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        raise StepError(
            f"expected loss(model, batch) to return a tensor, got {type(loss).__name__}; return the loss"
        )
    if loss.numel() != 1 or not (loss.is_floating_point()):
        raise StepError(
            f"expected a loss of one floating-point number, got {loss.dtype} of shape {tuple(loss.shape)}; "
            "use .mean()"
        )
    if not loss.requires_grad:
        made = any(parameter.is_inference() for _, _, parameter in named_parameters(model))
        why = (
            "its weights were made under torch.inference_mode; make the model outside of it"
            if made
            else "is the model frozen? to audit forwards alone: --mode infer"
        )
        raise StepError(
            f"expected a loss that depends on trainable parameters, got one without a gradient; {why}"
        )


def gradients(model: Any) -> list[torch.Tensor | None]:
    """Return the gradient of each parameter."""
    return [parameter.grad for _, _, parameter in named_parameters(model)]


def set_gradients(model: Any, grads: list[torch.Tensor | None]) -> None:
    """Give each parameter a gradient, in the parameter's dtype."""
    for (_, _, parameter), grad in zip(named_parameters(model), grads, strict=True):
        parameter.grad = None if grad is None else grad.to(parameter.dtype)


def clear_gradients(model: Any) -> None:
    """Forget all gradients of a model."""
    for _, _, parameter in named_parameters(model):
        parameter.grad = None


@dataclass(frozen=True, slots=True)
class StepRun:
    """One recorded step."""

    trace: Trace
    fetched: Fetched
    sources: Mapping[Site, Sequence[Site]]  #: what each operation's results were made of

    def error_jumps(
        self, reference: Trace, errors: Mapping[Site, PairError], dtype: str
    ) -> tuple[ErrorJump, ...]:
        """Return where errors begin: first the casts that the numbers do not fit."""
        return (
            *overflown_casts(self.sources, self.trace, reference, dtype),
            *error_jumps(self.sources, errors, dtype),
        )


def recorded(
    step: Step, recorder: Recorder, dtype: torch.dtype | None = None, log2_scale: int = 0
) -> StepRun:
    """Run a step and return what was recorded of it."""
    run(step, recorder, dtype, log2_scale)
    fetched = recorder.fetch()
    trace = recorder.trace(fetched)
    low = str(dtype).removeprefix("torch.")
    summary = summed_up(trace, fetched.losses[0], log2_scale, low)
    return StepRun(replace(trace, steps=(summary,)), fetched, recorder.sources())


def failed(raised: StepRaised) -> StepRun:
    """Return the run of a step that the user's code ended."""
    return StepRun(Trace(failure=raised.failure), Fetched({}, {}, {}, ()), {})
