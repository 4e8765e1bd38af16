"""One training step, recorded: forward and loss in a precision, backward at a loss scale."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.errors import StepError
from ampcheck.observe.emulation import cuda_casting
from ampcheck.observe.failure import locate
from ampcheck.observe.modules import plain_name, unwrapped
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.stand_in import autocast_stands_in
from ampcheck.trace import Failure

_LOW = frozenset({torch.float16, torch.bfloat16})


class StepRaised(StepError):
    """The user's model or loss raised; `failure` says where."""

    def __init__(self, failure: Failure) -> None:
        """Say what was raised and where."""
        module = f" in module {failure.module!r}" if failure.module else ""
        super().__init__(f"{failure.kind}: {failure.message}{module}", where=failure.location)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Step:
    """What is run: a model on a batch, up to a scalar loss."""

    model: Any
    batch: Any
    loss: Callable[[Any, Any], Any]

    @property
    def device(self) -> torch.device:
        """Return where the model's first parameter or buffer is, or the CPU."""
        inner = unwrapped(self.model)
        for kind in ("parameters", "buffers"):
            tensors = getattr(inner, kind, None)
            first = next(iter(tensors()), None) if callable(tensors) else None
            if isinstance(first, torch.Tensor):
                return first.device
        return torch.device("cpu")


@contextmanager
def casting_rules(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Let autocast mean CUDA's autocast, also on a CPU; with None every autocast is off, and TF32 too.

    Compiled modules run eagerly inside, so that their operations can be seen.
    """
    with ExitStack() as stack:
        stack.enter_context(_eagerly())
        stack.enter_context(autocast_stands_in(device.type, enabled=dtype is not None))
        if dtype is None:
            stack.enter_context(_without_tf32())
        elif device.type == "cpu":
            stack.enter_context(cuda_casting())
        yield


def _eagerly() -> Any:
    # Nothing can have been compiled where the compiler was never loaded, and loading it takes a second.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


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


def widen(model: Any) -> None:
    """Hold half-precision parameters and buffers in FP32; a snapshot puts the halves back."""
    modules = getattr(unwrapped(model), "modules", None)
    for module in modules() if callable(modules) else ():
        for table in (module._parameters, module._buffers):
            for tensor in table.values():
                if tensor is not None and tensor.dtype in _LOW:
                    tensor.grad = None
                    tensor.data = tensor.data.float()


def run(step: Step, recorder: Recorder, dtype: torch.dtype | None, log2_scale: int = 0) -> None:
    """Run and record a step; what the user's code raises is raised as StepRaised.

    The gradients of the step are left in the parameters, scaled. As in a training loop the backward runs
    outside of autocast.
    """
    clear_gradients(step.model)
    device = step.device
    autocast = nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
    try:
        with casting_rules(device, dtype), recorder, torch.enable_grad():
            with autocast:
                loss = step.loss(step.model, step.batch)
            _check(loss)
            recorder.book.keep_loss(loss)
            # As GradScaler does it: a loss in half precision becomes FP32 by the product.
            (loss * torch.tensor(2.0**log2_scale, device=loss.device) if log2_scale else loss).backward()
    except (KeyboardInterrupt, SystemExit, StepError):
        raise
    except Exception as error:
        raise StepRaised(locate(error, recorder.tracker)) from error
    for name, parameter in _named_parameters(step.model):
        module, _, leaf = plain_name(name).rpartition(".")
        if parameter.grad is not None:
            recorder.state(module, f"param_grad[{leaf}]", parameter.grad)
        recorder.state(module, f"param[{leaf}]", parameter)


def _check(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        raise StepError(f"expected loss(model, batch) to return a tensor, got {type(loss).__name__}; return the loss")
    if loss.numel() != 1 or not (loss.is_floating_point()):
        raise StepError(f"expected a loss of one floating-point number, got {loss.dtype} of shape {tuple(loss.shape)}; use .mean()")
    if not loss.requires_grad:
        raise StepError("expected a loss that depends on trainable parameters, got one without a gradient; is the model frozen?")


def gradients(model: Any) -> list[torch.Tensor | None]:
    """Return the gradient of each parameter."""
    return [parameter.grad for _, parameter in _named_parameters(model)]


def clear_gradients(model: Any) -> None:
    """Forget all gradients of a model."""
    for _, parameter in _named_parameters(model):
        parameter.grad = None


def _named_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    named = getattr(unwrapped(model), "named_parameters", None)
    return iter(named()) if callable(named) else iter(())
